package lock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

// A localSite is a memory.
type localSite struct {
	*memory
	stores [processes]*localStore
}

func newLocalSite() *localSite {
	l := &localSite{memory: newMemory()}
	for i := range l.stores {
		l.stores[i] = &localStore{l.memory, fmt.Sprintf("p%d", i)}
	}
	return l
}

func (s *localSite) store(p int) store                 { return s.stores[p] }
func (s *localSite) again() bool                       { return false }
func (s *localSite) die(context.Context, *target, int) {}
func (s *localSite) end(_ context.Context, t *target)  { s.at(t, func(l *localLock) { l.ends = 1 }) }
func (s *localSite) forget(_ context.Context, t *target) {
	s.at(t, func(l *localLock) { delete(l.records, t.record()) })
}
func (s *localSite) born(_ context.Context, t *target) (b int64) {
	s.at(t, func(l *localLock) { b = l.record.born })
	return b
}

// at does something with a record.
func (s *localSite) at(t *target, do func(l *localLock)) {
	l := s.stores[0].begin(t)
	defer l.end()
	do(l)
}

func (s *localSite) stop(_ context.Context, t *target, m *model) error {
	s.at(t, func(l *localLock) {
		if isUnclaimed(m.owner) && !m.ended && l.owner == m.owner {
			l.ends = l.now + lifetime.Milliseconds()
		}
	})
	return nil
}

func (s *localSite) compare(_ context.Context, t *target, m *model) (wrong string) {
	s.at(t, func(l *localLock) { wrong = m.differs(l.owner, names(l.queue)) })
	return wrong
}

func names(queue []entry) (all []string) {
	for _, e := range queue {
		all = append(all, e.name)
	}
	return all
}

// livingSteps are the steps but for the death of a process: none dies alone within a process.
func livingSteps() []step {
	return slices.DeleteFunc(steps(), func(s step) bool { return s.name == "dead" })
}

// A localStore does what the model does, on random ways.
func TestAProcessDoesWhatTheModelDoes(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	d := &driver{sites: []site{newLocalSite()}, random: rand.New(rand.NewPCG(seed, 1)), steps: livingSteps()}
	for n := range redistest.Pick(3000, 1_000_000) {
		if wrong := d.difference(t.Context(), fmt.Sprint("way", n)); wrong != "" {
			t.Fatalf("seed %d, way %d: %s", seed, n, wrong)
		}
	}
}

// A localStore and the scripts do the same, step by step.
func TestAProcessDoesWhatTheScriptsDo(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	ways, seed := redistest.Pick(60, 50_000), uint64(time.Now().UnixNano())
	var all sync.WaitGroup
	var gone atomic.Int64
	for worker := range 3 {
		d := newDriver(s.Client(t, sendingOnce), seed+uint64(worker))
		d.sites, d.steps = append(d.sites, newLocalSite()), livingSteps()
		all.Go(func() {
			for n := gone.Add(1); n <= int64(ways) && !t.Failed(); n = gone.Add(1) {
				if wrong := d.difference(t.Context(), fmt.Sprint("way", n)); wrong != "" {
					t.Errorf("seed %d, way %d: %s", seed+uint64(worker), n, wrong)
				}
			}
		})
	}
	all.Wait()
}

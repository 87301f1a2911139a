package cache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A past is the model of one key in a cache: what it holds, since when, and what
// the source has. It knows nothing of Redis, flights or leases.
type past struct {
	held     string // "" if nothing is held
	loaded   time.Time
	row      string // "" if there is none
	broken   bool
	loads    int
	ttl      time.Duration
	stale    time.Duration
	spare    time.Duration
	outcomes map[string]int
}

// get is what a Get has to give now, and leaves behind.
func (p *past) get() (value string, stale bool, err error) {
	over := time.Since(p.loaded) - p.ttl
	state := "dead"
	switch {
	case p.held == "":
		state = "empty"
	case over < 0:
		state = "fresh"
	case over < p.stale:
		state = "stale"
	case over < p.spare:
		state = "spare"
	}
	source := "answers"
	if p.broken {
		source = "fails"
	} else if p.row == "" {
		source = "has no row"
	}
	p.outcomes[state+", the source "+source]++
	switch before := p.held; state {
	case "fresh":
		return p.held, false, nil
	case "stale":
		_ = p.load() // in the background
		return before, true, nil
	case "spare":
		if err := p.load(); err != nil {
			return before, true, nil
		}
	default:
		if err := p.load(); err != nil {
			return "", false, err
		}
	}
	if p.held == "" {
		return "", false, cache.ErrNotFound
	}
	return p.held, false, nil
}

func (p *past) load() error {
	p.loads++
	if p.broken {
		return errBroken
	}
	p.held, p.loaded = p.row, time.Now()
	return nil
}

var errBroken = errors.New("the source is broken")

// Every state with every answer of the source, as they come at random, and whatever
// led there. It fails if any line of windows.of, of condition, or of what a read
// makes of them is another.
func TestAValueGoesThroughItsStates(t *testing.T) {
	outcomes := map[string]int{}
	for seed := range uint64(redistest.Pick(16, 400)) {
		inBubble(t, cell{redis: "mini", local: seed%2 == 1, breaker: true}, func(r *rig, _ *redistest.MiniServer) {
			p := &past{row: "v0", ttl: 20 * time.Second, stale: 6 * time.Second, spare: 18 * time.Second, outcomes: outcomes}
			if seed%5 == 4 {
				p.stale, p.spare = p.spare, p.stale // then there is no spare
			}
			walk(r, p, rand.New(rand.NewPCG(seed, 7)))
			if r.Failed() {
				r.Logf("seed %d", seed)
			}
		})
	}
	for _, state := range []string{"empty", "fresh", "stale", "spare", "dead"} {
		for _, source := range []string{"answers", "fails", "has no row"} {
			if n := outcomes[state+", the source "+source]; n < 2 {
				t.Errorf("%s, the source %s: met %d times", state, source, n)
			}
		}
	}
}

func walk(r *rig, p *past, random *rand.Rand) {
	loads := 0
	c := open(r, cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) {
		loads++
		switch {
		case p.broken:
			return "", errBroken
		case p.row == "":
			return "", cache.ErrNotFound
		}
		return p.row, nil
	}}, func(o *cache.Options) {
		o.TTL, o.StaleWhileRevalidate, o.StaleIfError = p.ttl, p.stale, p.spare
		o.Jitter, o.EarlyRefresh, o.NullTTL = -1, -1, time.Millisecond
		// Longer than what the local tier adds to a value that is past its TTL, shorter
		// than a step.
		o.Rebuild.ErrorHold = time.Millisecond
	})
	for step := range 100 {
		switch random.IntN(8) {
		case 0:
			p.row = fmt.Sprint("v", step)
		case 1:
			p.broken = !p.broken
		case 2:
			p.row = ""
		case 3:
			if err := c.Invalidate(r.ctx, 1); err != nil {
				r.Fatal(err)
			}
			p.held = ""
		}
		// The local tier may answer with what is past its TTL for a second.
		time.Sleep(1100*time.Millisecond + time.Duration(random.Int64N(int64(9*time.Second))))
		wanted, stale, wantErr := p.get()
		got, err := c.Fetch(r.ctx, 1)
		synctest.Wait() // for what goes on in the background
		if got.Value != wanted || got.Stale != stale || !errors.Is(err, wantErr) {
			r.Fatalf("step %d: got %+v, %v; want %q, stale %v, %v", step, got, err, wanted, stale, wantErr)
		}
		if loads != p.loads {
			r.Fatalf("step %d: %d loads, want %d", step, loads, p.loads)
		}
	}
}

// Without the early refresh the readers of a value whose load takes long would
// find it past its TTL each time; and with one by each reader the source would run
// hot.
func TestAValueThatIsReadOftenIsRefreshedBeforeItsEnd(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		source := newRows(r, 1)
		source.slowly(func(context.Context, int64) error { time.Sleep(2 * time.Second); return nil })
		c := open(r, source.source(), func(o *cache.Options) { o.TTL, o.Jitter = 100*time.Second, -1 })
		c.gives(r, 1, "v1")
		const reads, pause = 100_000, 10 * time.Millisecond // 10 TTLs
		began := time.Now()
		for range reads / 10 {
			c.gives(r, 1, "v1")
			time.Sleep(10 * pause)
		}
		if took := time.Since(began); took > reads*pause+time.Second {
			r.Errorf("readers waited for %v", took-reads*pause)
		}
		if s := c.Stats(); s.Stale > 0 {
			r.Errorf("%d answers were past their TTL", s.Stale)
		}
		if loads := source.loads(1); loads < 10 || loads > 13 {
			r.Errorf("%d loads in ten TTLs", loads)
		}
	})
}

// While the source hangs, somebody who cannot wait for it gets what was there.
func TestASpareAnswersACallerAtItsDeadline(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source(), func(o *cache.Options) { o.TTL, o.StaleWhileRevalidate = time.Second, -1 })
		c.gives(r, 1, "v1")
		hang := make(chan struct{})
		defer close(hang)
		source.slowly(func(context.Context, int64) error { <-hang; return nil })
		time.Sleep(time.Minute)
		for range 3 {
			ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
			began := time.Now()
			got, err := c.Fetch(ctx, 1)
			cancel()
			if err != nil || got.Value != "v1" || !got.Stale || time.Since(began) > 100*time.Millisecond {
				r.Errorf("got %+v, %v after %v", got, err, time.Since(began))
			}
			time.Sleep(2 * time.Second)
		}
	})
}

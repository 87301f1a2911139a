package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/levee-go/levee/examples/internal/servers"
)

// warm reads every product once in every process: the services have been running for a while.
func (s *stage) warm(ctx context.Context) error {
	var all sync.WaitGroup
	failed := make(chan error, len(s.sides))
	for _, side := range s.sides {
		all.Go(func() { failed <- side.warm(ctx) })
	}
	all.Wait()
	return errors.Join(<-failed, <-failed)
}

func (s *service) warm(ctx context.Context) error {
	for _, p := range s.fleet {
		for ids := range slices.Chunk(s.store.ids(), s.size.connections) {
			var all sync.WaitGroup
			failed := make([]error, len(ids))
			for i, id := range ids {
				all.Go(func() { _, _, failed[i] = p.read(ctx, id) })
			}
			all.Wait()
			if err := errors.Join(failed...); err != nil {
				return err
			}
		}
	}
	s.beat() // this does not count
	return nil
}

// load lets the users of both services read for as long as the script lasts: at an even pace, each on its own, whether or not the earlier
// ones have been answered, and both services at the same moments the same products. A few products are popular. It returns when all have
// their answers.
func (s *stage) load(ctx context.Context, seed uint64, lasts time.Duration, began time.Time) {
	rng := rand.New(rand.NewPCG(seed, 0))
	popular := rand.NewZipf(rng, 1.1, 20, uint64(s.size.rows-1))
	var users sync.WaitGroup
	defer users.Wait()
	for i := range int(lasts.Seconds() * float64(s.size.reads)) {
		due := began.Add(time.Second * time.Duration(i) / time.Duration(s.size.reads))
		// A timer is good to a millisecond or so; what is due until it fires goes out in one go.
		if wait := time.Until(due); wait > 0 && servers.Sleep(ctx, wait) != nil {
			return
		}
		id, first := 1+int64(popular.Uint64()), int(s.scene.Load())
		for _, side := range s.sides {
			users.Go(func() {
				stale, err := side.visit(ctx, i, id)
				side.tally.note(first, time.Since(due), stale, err, s.worse(first, int(s.scene.Load())))
			})
		}
	}
}

// worse tells whether anything more has broken between a scene and a later one.
func (s *stage) worse(first, last int) bool {
	for _, later := range s.script[first : last+1] {
		if later.out&^s.script[first].out != 0 {
			return true
		}
	}
	return false
}

// visit is one user who asks one process for one product, and leaves when that takes too long.
func (s *service) visit(ctx context.Context, user int, id int64) (stale bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.size.patience)
	defer cancel()
	type answer struct {
		product Product
		stale   bool
		err     error
	}
	got := make(chan answer, 1)
	s.asking.Go(func() {
		p, stale, err := s.fleet[user%len(s.fleet)].read(ctx, id)
		got <- answer{p, stale, err}
	})
	var a answer
	select {
	case a = <-got:
	case <-ctx.Done(): // whatever the service does, nobody hears it any more
		a.err = ctx.Err()
	}
	if a.err == nil && (a.product.ID != id || a.product.Name != nameOf(id)) {
		a.err = errors.New("the answer is another product")
	}
	return a.stale, a.err
}

// seen is what users saw.
type seen struct {
	fresh, stale, errors int
	overtaken            int             // of the errors, those of users for whom more had broken when they got them than when they came
	took                 []time.Duration // what they waited for it
	firstError           error
}

func (s *seen) note(took time.Duration, stale bool, err error, worse bool) {
	s.took = append(s.took, took)
	if err != nil && worse {
		s.overtaken++
	}
	switch {
	case err != nil:
		if s.errors++; s.firstError == nil {
			s.firstError = err
		}
	case stale:
		s.stale++
	default:
		s.fresh++
	}
}

func (s *seen) asked() int { return len(s.took) }

// percentile returns the time within which p of 100 were answered.
func (s *seen) percentile(p int) time.Duration {
	if len(s.took) == 0 {
		return 0
	}
	slices.Sort(s.took)
	return s.took[(len(s.took)*p+99)/100-1]
}

// A tally collects what the users of a service saw: since the last beat, and by the scene in which they came. Its methods may be called
// concurrently.
type tally struct {
	mu     sync.Mutex // guards what follows
	beat   seen
	scenes map[int]*seen
}

func (t *tally) note(scene int, took time.Duration, stale bool, err error, worse bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.beat.note(took, stale, err, worse)
	if t.scenes[scene] == nil {
		t.scenes[scene] = &seen{}
	}
	t.scenes[scene].note(took, stale, err, worse)
}

func (t *tally) next() seen {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.beat
	t.beat = seen{}
	return last
}

func (t *tally) scene(i int) seen {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.scenes[i] == nil {
		return seen{}
	}
	return *t.scenes[i]
}

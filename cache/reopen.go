package cache

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// A Write of several caches that is not confirmed
//
// The loader of one cache may read another one. So all keys of a Write are dropped before any is
// opened to publication, see openAll. If a drop is not confirmed, none is opened:
//
//	a Write of a row and its page             another process, which Redis answers
//	expires both, commits
//	drops the row: no answer
//	drops the page, and opens it
//	                                          loads the page, finds the old row in
//	                                          Redis, and publishes it: it would stay
//	drops the row, at last
//
// The holds end by themselves, after Options.Rebuild.Hold. The drops are repeated until all are confirmed,
// and then once more, which ends values that were made of an old value meanwhile.

// maxReopening is how many keys and tags of one cache wait to be opened. If there are more, the
// whole cache is cleared instead.
const maxReopening = 10_000

// A reopening repeats the drops of Writes whose keys are not opened. It belongs to the cache that
// is named first in a Write.
type reopening struct {
	work sync.WaitGroup

	mu      sync.Mutex // guards what follows
	clock   int        // counts the Writes
	of      map[*writer]*unopened
	running bool
}

// unopened is what waits of one cache, each item with the clock of the last Write that has named
// it.
type unopened struct {
	ids  map[string]int
	tags map[uint32]int
	all  int // the whole cache; 0: only ids and tags
}

// add makes a goroutine drop what is held, until closing ends.
func (r *reopening) add(closing context.Context, all []held) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock++
	if r.of == nil {
		r.of = map[*writer]*unopened{}
	}
	for _, h := range all {
		u := r.of[h.writer]
		if u == nil {
			u = &unopened{ids: map[string]int{}, tags: map[uint32]int{}}
			r.of[h.writer] = u
		}
		for _, id := range h.ids {
			u.ids[id] = r.clock
		}
		for _, tag := range h.tags {
			u.tags[tag] = r.clock
		}
		if len(u.ids)+len(u.tags) > maxReopening {
			clear(u.ids)
			clear(u.tags)
			u.all = r.clock
		}
	}
	if !r.running && closing.Err() == nil {
		r.running = true
		r.work.Go(func() { r.run(closing) })
	}
}

func (r *reopening) run(closing context.Context) {
	for retries := (wait.Backoff{First: 50 * time.Millisecond, Max: time.Second}); ; {
		retries.Sleep(closing)
		all, everything, now := r.next()
		if len(all) == 0 || closing.Err() != nil {
			return
		}
		drop := func() error {
			for _, w := range everything {
				if err := w.clear(context.WithoutCancel(closing)); err != nil {
					return err
				}
			}
			return dropAll(closing, all, true)
		}
		err := drop()
		if err == nil { // the first confirmed drop may have been lost before the last one
			err = drop()
		}
		if err == nil {
			r.done(now)
		}
	}
}

// next returns the ids and tags to drop, the caches to clear, and the clock. If there is nothing,
// the goroutine ends.
func (r *reopening) next() (all []held, everything []*writer, now int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.of, func(w *writer, _ *unopened) bool { return w.closed() })
	for w, u := range r.of {
		all = append(all, held{Changes: Changes{writer: w, ids: slices.Collect(maps.Keys(u.ids)), tags: slices.Collect(maps.Keys(u.tags))}})
		if u.all > 0 {
			everything = append(everything, w)
		}
	}
	r.running = len(all) > 0
	return all, everything, r.clock
}

// done removes what no Write has named since now.
func (r *reopening) done(now int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w, u := range r.of {
		maps.DeleteFunc(u.ids, func(_ string, at int) bool { return at <= now })
		maps.DeleteFunc(u.tags, func(_ uint32, at int) bool { return at <= now })
		if u.all <= now {
			u.all = 0
		}
		if len(u.ids)+len(u.tags)+u.all == 0 {
			delete(r.of, w)
		}
	}
}

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
//
// If only replicas are missing, masters have made all drops, and the keys are open. What waits is then dropped
// when the replicas are there, or when Redis has failed to reply: a failover may have undone the drops.

// maxReopening is how many keys and tags of one cache wait to be opened after transactions that succeeded,
// and how many after those that failed. If there are more, the whole cache is cleared instead.
const maxReopening = 10_000

// reopenLater makes the first of the caches that is still open repeat the drops of all. If all are closed,
// what Redis has not confirmed is lost. dropped says that masters have made all drops.
func reopenLater(all []held, dropped bool) {
	for _, h := range all {
		if h.writer.reopening.add(h.writer.closing, all, dropped) {
			return
		}
	}
}

// A reopening repeats the drops of Writes whose keys are not opened. It belongs to a cache, and may drop
// keys of others. What is left when its cache closes is passed on to one of those.
type reopening struct {
	work wait.Tasks

	mu      sync.Mutex // guards what follows
	clock   int        // counts the Writes
	undone  int        // the clock of the last Write whose drops a master may not have made; 0: none
	of      map[transactions]*unopened
	running bool
}

// transactions are those of a cache that have succeeded, or those that have failed, after which values are
// only expired.
type transactions struct {
	writer    *writer
	succeeded bool
}

// unopened is what waits of one cache, each item with the clock of the last Write that has named
// it.
type unopened struct {
	ids  map[string]int
	tags map[uint32]int
	all  int // the whole cache; 0: only ids and tags
}

// add makes a goroutine drop what is held until Redis has confirmed it or closing ends. It returns false if
// closing has ended and passOn has taken what there was.
func (r *reopening) add(closing context.Context, all []held, dropped bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.running {
		if !r.work.Begin() {
			return false
		}
		r.running = true
		go func() {
			defer r.work.End()
			r.run(closing)
		}()
	}
	r.clock++
	if !dropped {
		r.undone = r.clock
	}
	if r.of == nil {
		r.of = map[transactions]*unopened{}
	}
	for _, h := range all {
		of := transactions{h.writer, h.succeeded}
		u := r.of[of]
		if u == nil {
			u = &unopened{ids: map[string]int{}, tags: map[uint32]int{}}
			r.of[of] = u
		}
		for _, id := range h.ids {
			u.ids[id] = r.clock
		}
		for _, tag := range h.tags {
			u.tags[tag] = r.clock
		}
		if h.everything || len(u.ids)+len(u.tags) > maxReopening {
			clear(u.ids)
			clear(u.tags)
			u.all = r.clock
		}
	}
	return true
}

func (r *reopening) run(closing context.Context) {
	for retries := (wait.Backoff{First: 50 * time.Millisecond, Max: time.Second}); ; {
		retries.Sleep(closing)
		if closing.Err() != nil { // passOn takes what is left
			return
		}
		all, now, undone := r.next()
		if len(all) == 0 {
			return
		}
		if !undone && onlyReplicas(eachOf(all, func(h *held) error { return h.writer.tryReplicas(closing) })) {
			continue
		}
		err := dropAll(closing, all)
		if err == nil || onlyReplicas(err) { // the first drop may have been lost before the last one
			err = dropAll(closing, all)
		}
		r.done(now, err)
	}
}

// next returns what to drop, the clock, and whether a master may not have made a drop. If there is nothing
// to drop, the goroutine ends.
func (r *reopening) next() (all []held, now int, undone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all = r.left()
	r.running = len(all) > 0
	return all, r.clock, r.undone > 0
}

// left returns what to drop. The caller holds r.mu.
func (r *reopening) left() (all []held) {
	for of, u := range r.of {
		all = append(all, held{
			Changes:   Changes{writer: of.writer, ids: slices.Collect(maps.Keys(u.ids)), tags: slices.Collect(maps.Keys(u.tags))},
			succeeded: of.succeeded, everything: u.all > 0,
		})
	}
	return all
}

// done notes that the drops up to now have ended with err. If that is nil, it removes what no Write has named
// since.
func (r *reopening) done(now int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil && !onlyReplicas(err):
		r.undone = r.clock
	case r.undone <= now:
		r.undone = 0
	}
	if err != nil {
		return
	}
	for of, u := range r.of {
		maps.DeleteFunc(u.ids, func(_ string, at int) bool { return at <= now })
		maps.DeleteFunc(u.tags, func(_ uint32, at int) bool { return at <= now })
		if u.all <= now {
			u.all = 0
		}
		if len(u.ids)+len(u.tags)+u.all == 0 {
			delete(r.of, of)
		}
	}
}

// passOn ends r, whose cache has closed. It drops what is left once more, for a second at most, also of
// caches that have closed before: the rows of this one may have been dropped just now. Then another cache
// goes on, since a drop before this one may have been lost.
func (r *reopening) passOn() {
	<-r.work.Close()
	r.mu.Lock()
	all := r.left()
	r.of, r.running = nil, false
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = dropAll(ctx, all)
	reopenLater(all, false)
}

package audit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/internal/logonce"
)

// LedgerOptions adjusts a [Ledger]. The zero value of every field works.
type LedgerOptions[K comparable, V any] struct {
	// Share is the part of the keys whose changes are followed, up to 1: the same keys in all processes.
	// 0: 0.1.
	Share float64
	// Feed tells of changes, whoever has made them. It needs a name, and for PostgreSQL a slot, that
	// nothing else reads: each Ledger has a Feed of its own, which begins in the present. A Feed with a
	// method Consumes that returns true, as an Outbox, is refused: the Ledger would take changes away from
	// [cache.Follow]. Nil: the Ledger learns of the Writes of this cache in this process, and of each
	// Invalidate, Expire, Set and Announce, also those of a Follow of this process.
	Feed feed.Feed
	// Keys says which keys a changed row of a table affects, as [cache.Cache.Route] does; nil for the
	// primary key. A table that is not in Keys is ignored. Nil: the primary key, for each table.
	Keys map[string]func(feed.Row) ([]K, error)
	// Equal compares what is cached with what the source gives. Nil: as Options.Equal: a change of a field that the
	// Codec leaves out is not seen.
	Equal func(cached, source V) bool
	// Old is called for each look that has found an old value, concurrently, on goroutines of the Ledger. It
	// must not call Close. Nil: the first one of each minute is logged.
	Old func(StaleValue[K, V])
}

// A Ledger follows changes, and counts how many of them a cache still does not show after 1, 2, 10 and
// 60 s, in [cache.LedgerStats]: Stats().Ledger of the cache. For a share of the changed keys it looks at
// Redis and at the memory of this process, each for itself, as a Get would: it passes over values past their
// TTL, which are served marked stale, and over those that a Clear has ended. It loads nothing into the cache,
// refreshes nothing, and is in no count of Gets. Every process that is to look at its own memory needs a Ledger.
//
// # What counts as old
//
// The Ledger looks when it learns of a change, and then 1, 2, 10 and 60 s later. At each look it reads Redis and
// the memory, and then the source if one of them has a value: that is five loads for a change, also if nothing
// is old. A value that was right at one look is compared anew at the next: a source that lags was as old at first.
// A value that differs is a doubt: it lacks a change that was committed before that read of the source. That is no
// fault yet. The four times begin anew at that moment. A value counts as old after 2 s if the tier has that very
// value, by what is stored with it, 2 s or more after the source was first read to differ, and the source
// differs again. A look that begins the times anew is in no count.
//
// So a value that counts as old after 2 s lacks a change that was committed 2 s before, at the least. None of
// these makes a false alarm:
//
//   - A second change: a value that was loaded after the first one is another stored value, and so a doubt of
//     its own, whose times begin when it is seen. Nothing depends on how late a feed tells of a change.
//   - A rollback, or a change that is told twice or too early: the source does not differ.
//   - Clocks that disagree: all times are differences on the clock of this process. A time that is stored with
//     a value only tells it from another value of the same key.
//   - A Clear or ClearTags, an end of a TTL, an eviction: a value that is no longer served is not looked at.
//   - A process that pauses: its looks come late, which makes the values older than they are counted.
//
// A load from a replica may be older than what the cache has. Give load the primary; if it reads replicas all
// the same, the cache's ReplicaLag has to be as long as they lag: the times then begin only with the second
// look that a value differs at, twice that and a second later, and twice that after it.
//
// A loader that gives the same row differently each time makes false alarms: see Equal.
//
// A look that begins more than half its time too late, and finds nothing old, says nothing: it is counted as
// Skipped. At most four looks run at a time, so many changes or a slow source may make them late.
//
// If a key changes again, its looks begin anew, but not before the look after a second, and not while a value is
// in doubt: so a key that changes all the time is looked at too, and a change during a doubt has no looks of its
// own. At most 1,024 keys are under watch; changes of further ones are counted as Skipped. A watch lasts a minute,
// and longer if a value differs. If a look finds another such value for the eleventh time, as when somebody Sets
// old values all the time, the looks at that tier end, counted as Skipped.
type Ledger[K comparable, V any] struct {
	looker[K, V]
	from   inside.Ledger[K, V]
	o      LedgerOptions[K, V]
	unhear func()
	first  chan struct{} // has room for the first looks that run or wait for a place

	mu       sync.Mutex // guards watching
	watching map[K]*watch[K]
}

// A watch is the looks at a key.
type watch[K comparable] struct {
	key   K
	tiers []*tier
	newer chan struct{} // a change came while the key was watched
	table string        // of the last change; guarded by Ledger.mu
}

// A tier is one that a key is looked at in, with times of its own.
type tier struct {
	local bool
	since time.Time // when the doubt began, or the change was learned of
	step  int       // the next look is after ages[step]; there is none after the last
	doubt *doubt
	anew  int // so many doubts have begun the times anew
}

// A found is what a look at a tier has found.
type found[V any] struct {
	*tier
	inside.Look[V]
	is   verdict
	late bool // it came so late that the tier may have become right meanwhile
}

// ages are the times of the looks after a change.
var ages = [...]time.Duration{0, time.Second, 2 * time.Second, 10 * time.Second, time.Minute}

const (
	mostWatched = 1024 // keys
	mostLooking = 4    // looks at a time
	mostAnew    = 10   // doubts that begin the times of a tier anew, then its looks end
)

// NewLedger makes a Ledger of c, whose values it compares with what load returns: usually the cache's
// loader, on the primary. Its error names the field of o that is wrong. One Ledger at a time may learn of a
// cache's own Writes. Close it before the cache.
func NewLedger[K comparable, V any](c *cache.Cache[K, V], load cache.Loader[K, V], o LedgerOptions[K, V]) (*Ledger[K, V], error) {
	of := c.Inside().Audit.(inside.Audit[K, V])
	from := of.Ledger()
	if o.Share == 0 {
		o.Share = 0.1
	}
	if err := o.check(from, load != nil); err != nil {
		return nil, err
	}
	l := &Ledger[K, V]{from: from, o: o, unhear: func() {}, first: make(chan struct{}, mostLooking/2), watching: map[K]*watch[K]{}}
	l.open(of, load, o.Equal, mostLooking, &l.from.Counts.Failed)
	if o.Feed != nil {
		l.running.Go(l.follow)
	} else if l.unhear = from.Hear(l.wrote); l.unhear == nil {
		l.stop()
		return nil, errors.New("audit: another Ledger learns of the Writes of this cache")
	}
	return l, nil
}

func (o *LedgerOptions[K, V]) check(of inside.Ledger[K, V], loads bool) error {
	byKey := o.Keys == nil // a table's keys are primary keys
	for _, keys := range o.Keys {
		byKey = byKey || keys == nil
	}
	one, consumer := o.Feed.(interface{ Consumes() bool })
	switch {
	case !loads:
		return errors.New("audit: NewLedger needs a load")
	case !(o.Share > 0 && o.Share <= 1):
		return fmt.Errorf("audit: LedgerOptions: Share must be up to 1, got %v", o.Share)
	case consumer && one.Consumes():
		return fmt.Errorf("audit: LedgerOptions: Feed: a change that a Ledger confirms to %q is gone for cache.Follow: use a Ledger without a Feed in the process that follows it", o.Feed.Name())
	case o.Feed == nil && !of.Keyed:
		return errors.New("audit: LedgerOptions: a Feed is needed for a cache that cannot turn the text of a key back into the key")
	case o.Feed != nil && o.Keys != nil && len(o.Keys) == 0:
		return errors.New("audit: LedgerOptions: Keys names no table, so nothing would be followed: nil follows each table")
	case o.Feed != nil && byKey && (of.Fits != nil || !of.Keyed):
		return errors.New("audit: LedgerOptions: Keys needs a func for each table, as the keys of this cache are not made of a column")
	}
	return nil
}

// Close ends the looks, and waits for those under way, for up to 10 s.
func (l *Ledger[K, V]) Close() {
	l.unhear()
	l.close()
}

// watch looks at a key until the last look is over.
func (l *Ledger[K, V]) watch(w *watch[K]) {
	for l.ctx.Err() == nil {
		due, next, passed := w.due()
		l.from.Counts.Skipped.Add(passed)
		switch {
		case len(due) > 0:
			l.visit(w, due)
		case !next.IsZero():
			l.pause(w, next)
		case l.unwatch(w):
			return
		}
	}
}

// visit has tiers looked at. First looks get some of the places only, as the others are to be in time.
func (l *Ledger[K, V]) visit(w *watch[K], due []*tier) {
	if due[0].step == 0 {
		select {
		case l.first <- struct{}{}:
			defer func() { <-l.first }()
		case <-l.ctx.Done():
			return
		}
	}
	l.run(l.ctx, func(ctx context.Context) error { return l.look(ctx, w, due) })
	for _, t := range due {
		t.step++
	}
}

// due returns the tiers that are to be looked at now, and otherwise the time of the next look; zero: there is none.
// Of several looks that are too late it leaves out all but the last, as they would say nothing, and says how many.
func (w *watch[K]) due() (due []*tier, next time.Time, passed uint64) {
	now := time.Now()
	for _, t := range w.tiers {
		if t.step == len(ages) {
			continue
		}
		for t.doubt == nil && t.step > 0 && t.step+1 < len(ages) && now.After(t.since.Add(ages[t.step+1])) {
			t.step++
			passed++
		}
		at := t.since.Add(ages[t.step])
		switch {
		case !at.After(now):
			due = append(due, t)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return due, next, passed
}

// pause waits for the next look, or for a newer change.
func (l *Ledger[K, V]) pause(w *watch[K], next time.Time) {
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.ctx.Done():
	case <-w.newer:
		w.renew()
	}
}

// unwatch ends a watch, unless the key has changed again.
func (l *Ledger[K, V]) unwatch(w *watch[K]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(w.newer) == 0 {
		delete(l.watching, w.key)
		return true
	}
	<-w.newer
	w.renew()
	return false
}

// renew begins the looks anew after a newer change, unless a look after a second or at a doubt is still to come:
// otherwise a key that changes all the time would never be looked at.
func (w *watch[K]) renew() {
	now := time.Now()
	for _, t := range w.tiers {
		if t.step == len(ages) || t.step > 1 && t.doubt == nil {
			*t = tier{local: t.local, since: now}
		}
	}
}

// look looks at the tiers that are due, and then at the source, once for all of them.
func (l *Ledger[K, V]) look(ctx context.Context, w *watch[K], due []*tier) error {
	var all []found[V]
	var source inside.Look[V]
	for _, t := range due {
		late := time.Since(t.since) > ages[t.step]*3/2
		look, err := l.from.In(ctx, w.key, t.local)
		if err != nil {
			l.end(err)
			continue
		}
		source.There = source.There || look.There
		all = append(all, found[V]{tier: t, Look: look, late: late})
	}
	failed := l.source(ctx, w.key, &source)
	now := time.Now()
	var old []StaleValue[K, V]
	for _, f := range all {
		if f.There {
			if failed != nil {
				continue
			}
			if f.Gone = source.Gone; !f.Gone {
				f.Source = l.of.Clone(source.Source) // one for each: Old may change it
			}
		}
		is, err := l.verdict(f.Look, f.doubt)
		if err != nil {
			l.end(err)
			continue
		}
		if f.is = is; l.count(f, now) {
			old = append(old, l.old(w, f))
		}
	}
	for _, stale := range old { // last, as the function is the user's
		l.tell(all[0].ID, stale)
	}
	return failed
}

// count counts what a look has found, says when to look again, and reports whether the value is old.
func (l *Ledger[K, V]) count(f found[V], now time.Time) (old bool) {
	age := f.step - 1
	if f.is == differs {
		f.anew++
	}
	switch {
	case f.is == sure || f.is == differs && f.anew <= mostAnew: // the times begin anew
		f.doubt, f.step, f.since = l.doubt(f.Look, f.is), 0, now.Add(2*l.of.ReplicaLag)
		return false
	case f.is == differs:
		f.step = len(ages) - 1
		l.from.Counts.Skipped.Add(1)
	case age < 0: // the change was just learned of
	case f.is == still:
		l.from.Counts.Looked[age].Add(1)
		l.from.Counts.Old[age].Add(1)
		return true
	case f.late:
		l.from.Counts.Skipped.Add(1)
	default:
		l.from.Counts.Looked[age].Add(1)
	}
	f.doubt = nil
	return false
}

// old describes an old value.
func (l *Ledger[K, V]) old(w *watch[K], f found[V]) StaleValue[K, V] {
	old := staleOf(w.key, f.Look)
	old.Tier, old.Since, old.After = cache.TierRedis, f.since, ages[f.step]
	if f.local {
		old.Tier = cache.TierLocal
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old.Table = w.table
	return old
}

// tell tells the user of an old value.
func (l *Ledger[K, V]) tell(id string, old StaleValue[K, V]) {
	if l.o.Old != nil {
		l.o.Old(old)
		return
	}
	l.of.Log.Error("a value is old after a change", logonce.Name("key", id), "table", old.Table, "tier", old.Tier.String(),
		"since", old.Since, "null", old.Null, "gone", old.Gone, "age", old.Age)
}

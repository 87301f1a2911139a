package bloom

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

// copied is a filter without an updater, with a copy of a snapshot of the first 100 ids, and another filter,
// which has made the snapshot.
func copied(t *testing.T) (f *Filter, s *shared, rec *record, snap snapshot, other *Filter) {
	t.Helper()
	srv := redistest.Start(t)
	other, _ = opened(t, srv)
	if err := other.Rebuild(t.Context(), yielding(some(0, 100))); err != nil {
		t.Fatal(err)
	}
	f, s = unstarted(t, srv)
	s.o.MaxTransaction = -1
	rec, _ = s.state(t)
	snap, _, err := s.update(t.Context(), rec)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.load(t.Context(), rec, snap); err != nil || denied(f, some(100, 200)) < 90 {
		t.Fatalf("%v, %+v", err, f.Stats())
	}
	return f, s, rec, snap, other
}

// Redis was out of a process's reach while rows were imported, the filter was invalidated and another process
// rebuilt it. The log goes on, and there is a snapshot again.
func TestACopyFromBeforeAnInvalidateIsNotTakenUpAgain(t *testing.T) {
	t.Parallel()
	f, s, rec, _, other := copied(t)
	if err := other.Invalidate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := other.Rebuild(t.Context(), yielding(some(0, 200))); err != nil {
		t.Fatal(err)
	}
	snap, _, err := s.update(t.Context(), rec)
	if n := denied(f, some(100, 200)); err != nil || n > 0 {
		t.Errorf("%v, of 100 rows %d are denied", err, n)
	}
	if err := s.load(t.Context(), rec, snap); err != nil || denied(f, some(0, 200)) > 0 || denied(f, some(200, 300)) < 90 {
		t.Errorf("%v, and then %+v", err, f.Stats())
	}
}

// A process has begun to load a snapshot, which another process gives up before the load's last read.
func TestASnapshotThatWasInvalidatedMeanwhileIsNotLoaded(t *testing.T) {
	t.Parallel()
	f, s, rec, snap, other := copied(t)
	if err := other.Invalidate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.update(t.Context(), rec); err != nil || denied(f, some(100, 200)) > 0 {
		t.Fatal(err, "it does not abstain")
	}
	err := s.load(t.Context(), rec, snap)
	if n := denied(f, some(100, 200)); err == nil || n > 0 {
		t.Errorf("%v, of 100 rows %d are denied", err, n)
	}
}

// The filter is invalidated between the switch to the result of a Rebuild and the moment at which the process of
// the Rebuild takes it as its copy.
func TestTheResultOfARebuildThatWasInvalidatedIsNoCopy(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		f, s, _, old, other := copied(t)
		nothing := redistest.EachCommand(func(redis.Cmder) {})
		read := &after{EachCommand: nothing, script: tailScript, fn: func() { // the last read; this process comes to know at once
			if err := f.Invalidate(t.Context()); err != nil {
				t.Error(err)
			}
		}}
		read.ran.Store(true)
		s.rdb.AddHook(read)
		switched := &after{EachCommand: nothing, script: switchScript}
		switched.fn = func() {
			if s.rdb.HGet(t.Context(), s.store.names.Record(), "pieces").Val() == old.pieces {
				switched.ran.Store(false) // it has only learned the name of the old snapshot
			} else if own {
				read.ran.Store(false)
			} else if err := other.Invalidate(t.Context()); err != nil {
				t.Error(err)
			}
		}
		s.rdb.AddHook(switched)
		_, ran, err := s.rebuildOrWait(t.Context(), 0, yielding(some(0, 100)))
		if n := denied(f, some(100, 200)); err != nil || !ran || n > 0 {
			t.Errorf("own %v: %v, of 100 rows %d are denied", own, err, n)
		}
	}
}

// A failover loses the last Invalidate: the snapshot that was given up is in use again and its Rebuild is young. A
// process that knows of the Invalidate repeats it, whether or not the failover has lost entries of the log too.
func TestAnInvalidateThatAFailoverLostIsRepeated(t *testing.T) {
	t.Parallel()
	for _, adds := range [][]string{nil, {"x"}} {
		f, s, rec, _, other := copied(t)
		lose(t, s, func() {
			if err := errors.Join(other.Invalidate(t.Context()), other.Add(t.Context(), adds...)); err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.update(t.Context(), rec); err != nil { // so it hears of it
				t.Fatal(err)
			}
			_ = other.Close()
		})
		u := newUpdater(s)
		for range 3 { // the first notices; the last has no load left to wait for
			_ = u.step(t.Context())
			s.running.Wait()
		}
		if n := denied(f, some(100, 200)); n > 0 || !f.Stats().NeedsRebuild {
			t.Errorf("%d adds: of 100 rows %d are denied, %+v", len(adds), n, f.Stats())
		}
		if ran, err := f.RebuildIfOlder(t.Context(), time.Hour, yielding(some(0, 200))); !ran || err != nil {
			t.Errorf("%d adds: it is not rebuilt: %v", len(adds), err)
		}
		if _, snap := s.state(t); snap.invalid != s.invalid[rec.header] {
			t.Errorf("%d adds: Redis says %d", len(adds), snap.invalid)
		}
	}
}

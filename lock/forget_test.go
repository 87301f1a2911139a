package lock

import (
	"context"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// takes takes a lock that is free for an owner, and returns what to give back.
func takes(t *testing.T, s store, on *target, owner string) *grant {
	t.Helper()
	r, err := s.acquire(t.Context(), on, bid{owners: []string{owner}, lease: time.Minute})
	if err != nil || r.answer != answerGranted {
		t.Fatalf("%s: %v, %v", owner, r, err)
	}
	return &grant{target: *on, o: &Options{}, owner: owner, fence: r.granted.fence, ends: r.granted.ends}
}

// A failover goes back to a replica that knows the lock's record, and not the last grant.
// Catches an Unlock that reports success, as if the reply to an Unlock had been lost.
func TestAnUnlockReportsAGrantThatAFailoverForgot(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	s, a := newRedisStore(rdb, "p0"), newTarget("", keys.Mutex, "a", exclusive)
	if what, err := s.release(t.Context(), takes(t, s, &a, "p0:1"), 0); what != answerOK {
		t.Fatal(what, err)
	}
	before := rdb.Dump(t.Context(), a.record()).Val()
	last := takes(t, s, &a, "p0:2")
	for _, passedOn := range []int64{0, maxPassed} { // the last of a cohort has no other fence in Redis
		g := &grant{target: a, o: last.o, owner: last.owner, fence: last.fence + passedOn, ends: last.ends}
		if err := rdb.RestoreReplace(t.Context(), a.record(), time.Hour, before).Err(); err != nil {
			t.Fatal(err)
		}
		if what, err := s.release(t.Context(), g, 0); what != answerLost {
			t.Errorf("fence %d: it says %v, %v", g.fence, what, err)
		}
	}
}

// A permit is granted to an entry whose caller has left. The process that passes it on does not
// know how many there are. Catches one that takes them for a single one: as long as another
// permit is held, the next caller is not told of this one.
func TestAPermitForNobodyIsPassedOn(t *testing.T) {
	t.Parallel()
	t.Run("over Redis", func(t *testing.T) {
		rdb := redistest.Start(t).Client(t)
		passesOnAPermitForNobody(t, newRedisStore(rdb, "p0"), func(a *target, share string) bool {
			return rdb.ZScore(context.Background(), a.keys[3], share).Err() == nil
		})
	})
	t.Run("within the process", func(t *testing.T) {
		site := newLocalSite()
		passesOnAPermitForNobody(t, site.stores[0], func(a *target, share string) (granted bool) {
			site.at(a, func(l *localLock) { _, granted = l.shares[share] })
			return granted
		})
	})
}

func passesOnAPermitForNobody(t *testing.T, s store, has func(a *target, share string) bool) {
	a := newTarget("", keys.Semaphore, "a", permit)
	a.permits = 3
	held := []*grant{takes(t, s, &a, "p0:1"), takes(t, s, &a, "p0:2"), takes(t, s, &a, "p0:3")}
	for _, entry := range []string{"p:p0:1", "p:p0:2", "p:p0:3"} {
		if r, err := s.acquire(t.Context(), &a, bid{owners: []string{"p0:" + entry}, entry: entry, lease: time.Minute}); r.answer != answerBusy {
			t.Fatal(r, err)
		}
	}
	if what, err := s.release(t.Context(), held[0], 0); what != answerOK {
		t.Fatal(what, err)
	}
	granted := func(entry string) bool { return has(&a, "g:"+entry) }
	if !granted("p:p0:1") {
		t.Fatal("it was not granted")
	}
	unknown := targetOf("", a.keys, exclusive, 1) // as hear has it
	if err := s.leave(t.Context(), &unknown, "p:p0:1"); err != nil {
		t.Fatal(err)
	}
	if granted("p:p0:1") || !granted("p:p0:2") || granted("p:p0:3") {
		t.Error("the one permit is not the next caller's")
	}
}

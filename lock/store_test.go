package lock

import (
	"testing"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// A bid that was refused may arrive after its refusal, over another connection.
func TestALateCopyOfARefusedBidGetsNothing(t *testing.T) {
	s := redistest.Start(t)
	st := newStore(s.Client(t), "p")
	tgt := newTarget("", keys.Mutex, "a", exclusive)
	b := bid{owners: []string{"p:1"}, lease: time.Minute}
	if err := st.refuse(t.Context(), &tgt, "p:1"); err != nil { // before it was carried out
		t.Fatal(err)
	}
	if r, err := st.acquire(t.Context(), &tgt, b); err != nil || r.answer != answerGone {
		t.Errorf("%v, %v", r, err)
	}
	EveryKeyEnds(t, s.Client(t))
}

// The queue may outlive the record. Somebody who comes then neither passes those
// who wait, nor has one of them granted the lock who has left meanwhile: nobody
// would claim that, until two seconds are over.
func TestAQueueOutlivesItsRecord(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	holder, waiter, comer := newStore(rdb, "p0"), newStore(rdb, "p1"), newStore(rdb, "p2")
	tgt := newTarget("", keys.Mutex, "a", exclusive)
	ask := func(s *store, owner, entry string, ticket int64) bidReply {
		t.Helper()
		r, err := s.acquire(ctx, &tgt, bid{owners: []string{owner}, entry: entry, ticket: ticket, lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	evict := func() int64 { // with somebody in the queue, whose ticket is returned
		t.Helper()
		rdb.FlushDB(ctx)
		ask(holder, "p0:1", "", 0)
		waits := ask(waiter, "p1:1", "m:p1:1", 0)
		if rdb.Del(ctx, tgt.record()); waits.answer != answerBusy || rdb.ZCard(ctx, tgt.keys[1]).Val() != 1 {
			t.Fatalf("%+v", waits)
		}
		return waits.busy.ticket
	}

	ticket := evict()
	if r := ask(comer, "p2:1", "", 0); r.answer != answerBusy {
		t.Errorf("somebody waits, and who comes gets %+v", r)
	}
	if r := ask(waiter, "p1:2", "m:p1:1", ticket); r.answer != answerGranted || r.granted.fence <= ticket {
		t.Errorf("the one who waited got %+v", r)
	}

	ticket = evict() // and somebody makes sure that he has nothing: that brings the record back
	if err := comer.refuse(ctx, &tgt, "p2:1"); err != nil {
		t.Error(err)
	}
	if r := ask(comer, "p2:2", "", 0); r.answer != answerBusy {
		t.Errorf("somebody waits, and who comes gets %+v", r)
	}
	if r := ask(waiter, "p1:2", "m:p1:1", ticket); r.answer != answerGranted {
		t.Errorf("the one who waited got %+v", r)
	}

	evict()
	if err := waiter.leave(ctx, &tgt, "m:p1:1"); err != nil {
		t.Error(err)
	}
	if r := ask(comer, "p2:3", "", 0); r.answer != answerGranted {
		t.Errorf("nobody waits, and who comes gets %+v", r)
	}
	EveryKeyEnds(t, rdb)
}

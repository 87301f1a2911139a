package lock

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// A bid that was refused may arrive after its refusal, over another connection.
func TestALateCopyOfARefusedBidGetsNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	st := newRedisStore(s.Client(t), "p")
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

// What one script takes for several is all or nothing, whatever has become of any of them.
// Catches a copy that is granted some of its locks again, for nobody.
func TestABidForSeveralIsAllOrNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, ctx := s.Client(t), t.Context()
	st := newRedisStore(rdb, "p")
	var targets []target
	for _, name := range []string{"a", "b", "c"} {
		targets = append(targets, newTarget("", keys.Mutex, name, exclusive))
	}
	all := bid{owners: []string{"p:1", "p:2", "p:3"}, lease: time.Minute, label: "all"}
	other := bid{owners: []string{"q:1"}, lease: time.Minute}
	takeOther := func() error { _, err := st.acquire(ctx, &targets[1], other); return err }
	giveBack := func(i int, owner string) error { return st.refuse(ctx, &targets[i], owner) }
	for name, c := range map[string]struct {
		do    func() error
		first bool // do it after a bid that was granted
		want  answer
	}{
		"free":                        {func() error { return nil }, false, answerGranted},
		"asked again":                 {func() error { return nil }, true, answerGranted},
		"one is held":                 {takeOther, false, answerBusy},
		"one was held":                {func() error { return errors.Join(takeOther(), giveBack(1, "q:1")) }, false, answerGranted},
		"one has a queue":             {func() error { return rdb.HSet(ctx, targets[2].record(), "o", "", "f", 1, "b", 1, "q", "1").Err() }, false, answerBusy},
		"one has a queue alone":       {func() error { return rdb.ZAdd(ctx, targets[2].keys[1], redis.Z{Member: "m:q:1"}).Err() }, false, answerBusy},
		"one is broken":               {func() error { return rdb.HSet(ctx, targets[1].record(), "o", "", "f", "nan").Err() }, false, answerBusy},
		"one is somebody's hash":      {func() error { return rdb.HSet(ctx, targets[1].record(), "x", "y").Err() }, false, answerBusy},
		"one was refused":             {func() error { return giveBack(2, "p:3") }, false, answerGone},
		"one was given back":          {func() error { return giveBack(0, "p:1") }, true, answerGone},
		"one is evicted":              {func() error { return rdb.Del(ctx, targets[0].record()).Err() }, true, answerGone},
		"one went to another":         {func() error { return errors.Join(giveBack(1, "p:2"), takeOther(), giveBack(1, "q:1")) }, true, answerGone},
		"all but one went to another": {func() error { return errors.Join(giveBack(1, "p:2"), takeOther(), giveBack(2, "p:3")) }, true, answerGone},
	} {
		t.Run(name, func(t *testing.T) {
			rdb.FlushDB(ctx)
			var first bidReply
			if c.first {
				first, _ = st.acquireAll(ctx, targets, all)
			}
			if err := c.do(); err != nil {
				t.Fatal(err)
			}
			writes := s.Calls("hset") + s.Calls("pexpire")
			r, err := st.acquireAll(ctx, targets, all)
			if err != nil || r.answer != c.want {
				t.Fatalf("%v, %v, want %s", r, err, c.want)
			}
			if wrote := s.Calls("hset") + s.Calls("pexpire") - writes; wrote > 0 != (c.want == answerGranted && !c.first) {
				t.Errorf("%d writes", wrote)
			}
			if c.first && c.want == answerGranted && (r.granted.fence != first.granted.fence || r.granted.ends != first.granted.ends) {
				t.Errorf("%v, and then %v", first, r)
			}
			if c.want != answerGranted {
				return
			}
			for _, tgt := range targets {
				if fence := rdb.HGet(ctx, tgt.record(), "f").Val(); fence != fmt.Sprint(r.granted.fence) {
					t.Errorf("%s has the fence %s, the bid %d", tgt.name, fence, r.granted.fence)
				}
				if ttl := rdb.PTTL(ctx, tgt.record()).Val(); ttl < 10*time.Minute || ttl > 12*time.Minute {
					t.Errorf("%s has a TTL of %v", tgt.name, ttl)
				}
			}
		})
	}
}

// Catches one fence for several that is not above all that was given, or reserved, for each.
func TestTheFenceOfSeveralIsAboveThatOfEach(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, ctx := s.Client(t), t.Context()
	st := newRedisStore(rdb, "p")
	targets := []target{newTarget("", keys.Mutex, "a", exclusive), newTarget("", keys.Mutex, "b", exclusive)}
	ahead := time.Now().Add(time.Hour).UnixMicro() // of a server whose clock was set back since
	rdb.HSet(ctx, targets[1].record(), "o", "", "f", ahead, "b", 1)
	r, err := st.acquireAll(ctx, targets, bid{owners: []string{"p:1", "p:2"}, lease: time.Minute})
	if err != nil || r.granted.fence != ahead+16 {
		t.Fatalf("%v, %v after %d", r, err, ahead)
	}
	for i := range targets {
		if ttl := rdb.PTTL(ctx, targets[i].record()).Val(); ttl < 70*time.Minute {
			t.Errorf("%s has a TTL of %v, and its fence is an hour ahead", targets[i].name, ttl)
		}
		owner := fmt.Sprint("p:", i+1)
		if what, err := st.giveBack(ctx, &targets[i], owner, r.granted.fence, r.granted.ends, false, 0); what != answerOK || err != nil {
			t.Errorf("%s: %s, %v", targets[i].name, what, err)
		}
		next, err := st.acquire(ctx, &targets[i], bid{owners: []string{"p:9" + owner}, lease: time.Minute})
		if err != nil || next.granted.fence <= r.granted.fence {
			t.Errorf("%s: %v, %v after %d", targets[i].name, next, err, r.granted.fence)
		}
	}
}

// The queue may outlive the record. Somebody who comes then neither passes those
// who wait, nor has one of them granted the lock who has left meanwhile: nobody
// would claim that, until two seconds are over.
func TestAQueueOutlivesItsRecord(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	holder, waiter, comer := newRedisStore(rdb, "p0"), newRedisStore(rdb, "p1"), newRedisStore(rdb, "p2")
	tgt := newTarget("", keys.Mutex, "a", exclusive)
	ask := func(s *redisStore, owner, entry string, ticket int64) bidReply {
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

// A writer that was slow to claim its grant comes back with its ticket, and no reader gets in
// front of it. Its lapsed grant stayed in the record beside readers, so each script took its
// process for dead once more, and dropped it from the queue.
func TestAWriterWhoseGrantLapsedKeepsItsPlace(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, ctx := s.Client(t), t.Context()
	bid := func(p string, m mode, ticket int64) bidReply {
		t.Helper()
		lock := newTarget("", keys.ReadWrite, "a", m)
		r, err := newRedisStore(rdb, p).acquire(ctx, &lock, bid{
			owners: []string{p + ":1"}, entry: string(m) + ":" + p + ":1", ticket: ticket, lease: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := newTarget("", keys.ReadWrite, "a", write)
	got := bid("p0", write, 0).granted
	writer := bid("p1", write, 0)
	g := &grant{target: first, owner: "p0:1", fence: got.fence, ends: got.ends, o: &Options{}}
	if what, err := newRedisStore(rdb, "p0").release(ctx, g, 0); err != nil || what != answerOK {
		t.Fatal(what, err)
	}
	rdb.HSet(ctx, first.record(), "x", 1) // it is not claimed in time
	if r := bid("p2", read, 0); r.answer != answerGranted {
		t.Fatalf("a reader: %+v", r)
	}
	if r := bid("p1", write, writer.busy.ticket); r.answer != answerBusy || r.busy.waiting != 1 {
		t.Errorf("the writer: %+v", r)
	}
	if r := bid("p3", read, 0); r.answer != answerBusy || r.busy.waiting != 2 {
		t.Errorf("a reader in front of the writer: %+v", r)
	}
}

// A bid for a permit is not answered in 100 ms and sent again, and somebody else has got a permit
// in between: the second reply has that one's fence. Catches that the first reply counts as
// another grant, which is released under the caller that has it.
func TestBothRepliesToABidForAPermitAreOneGrant(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"the first arrives first": true, "the first arrives last": false} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			p := redistest.Proxy(t, s.Addr())
			type embedded struct{ redis.UniversalClient } // whose commands a caller can leave
			rdb := p.Client(t)
			st, other := newRedisStore(embedded{rdb}, "p0"), newRedisStore(s.Client(t), "p1")
			released := make(chan answer, 1)
			st.late = func(_ *target, _ bid, r bidReply, _ error) { released <- r.answer }
			tgt := newTarget("", keys.Semaphore, "a", permit)
			tgt.permits = 9
			takes(t, st, &tgt, "p0:1") // loads the script
			first, goOn := p.HoldReply("EVALSHA " + acquireScript.Hash())
			second, goOnToo := p.HoldReply("EVALSHA " + acquireScript.Hash())
			var between granted
			var sent atomic.Int32
			rdb.AddHook(redistest.EachCommand(func(cmd redis.Cmder) {
				if args := cmd.Args(); len(args) > 1 && args[1] == acquireScript.Hash() {
					if sent.Add(1) == 2 {
						<-first // Redis has run it
						r, err := other.acquire(t.Context(), &tgt, bid{owners: []string{"p1:1"}, lease: time.Minute})
						if err != nil || r.answer != answerGranted {
							t.Errorf("%+v, %v", r, err)
						}
						between = r.granted
					}
				}
			}))
			got := make(chan bidReply)
			go func() {
				r, err := st.acquire(t.Context(), &tgt, bid{owners: []string{"p0:2"}, lease: time.Minute})
				if err != nil {
					t.Error(err)
				}
				got <- r
			}()
			<-first
			<-second
			if before {
				goOn()
				time.Sleep(50 * time.Millisecond) // it arrives
			}
			goOnToo()
			if r := <-got; r.answer != answerGranted || r.granted.fence != between.fence {
				t.Errorf("%+v, the other has %+v", r, between)
			}
			goOn()
			select {
			case what := <-released:
				t.Errorf("the owner is to be released: %q", what)
			case <-time.After(100 * time.Millisecond): // for what must not happen
			}
		})
	}
}

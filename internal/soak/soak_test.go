package soak

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m, redistest.Roles{"service": serve}) }

const processes = 4

// A fleet is the processes, each with a connection to Redis that can be spoiled for
// it alone.
type fleet struct {
	redis, db *redistest.Server
	proxies   []*redistest.FaultProxy
	children  []*redistest.ChildProcess
	away      [processes]bool   // is stopped or killed
	last      [processes]report // of each process
	gone      []report          // the last ones of those that were killed
	admin     *redis.Client
	rows      *redis.Client
}

func start(t *testing.T) *fleet {
	f := &fleet{redis: redistest.Start(t), db: redistest.Start(t)}
	f.admin = f.redis.Client(t, func(o *redis.Options) { o.DialerRetries, o.ContextTimeoutEnabled = 1, true })
	f.rows = f.db.Client(t)
	rows := f.rows.Pipeline()
	for id := range int64(products) {
		rows.Set(t.Context(), row(id), 1, 0)
	}
	if _, err := rows.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range processes {
		p := redistest.Proxy(t, f.redis.Addr())
		f.proxies = append(f.proxies, p)
		f.children = append(f.children, f.child(t, p))
	}
	return f
}

func (f *fleet) child(t *testing.T, p *redistest.FaultProxy) *redistest.ChildProcess {
	return redistest.Child(t, "service", p.Addr(), f.db.Addr())
}

// processFault breaks a process, not its Redis.
func (f *fleet) processFault(t *testing.T, i int, kill bool) (name string, heal func()) {
	f.away[i] = true
	if kill {
		f.children[i].Kill()
		f.gone = append(f.gone, f.last[i])
		f.last[i] = report{}
		return "one process killed", func() { f.children[i], f.away[i] = f.child(t, f.proxies[i]), false }
	}
	f.children[i].Stop()
	return "one process stopped", func() { f.children[i].Cont(); f.away[i] = false }
}

// A fault breaks something, and returns what heals it after a while.
type fault struct {
	name string
	do   func(ctx context.Context, f *fleet, one *redistest.FaultProxy) (heal func())
}

func atOnce() {}

var faults = []fault{
	{"Redis stopped", func(_ context.Context, f *fleet, _ *redistest.FaultProxy) func() { f.redis.Stop(); return f.redis.Cont }},
	{"Redis killed", func(_ context.Context, f *fleet, _ *redistest.FaultProxy) func() {
		f.redis.Kill()
		return f.redis.Restart
	}},
	{"FLUSHALL", func(ctx context.Context, f *fleet, _ *redistest.FaultProxy) func() {
		f.admin.FlushAll(ctx)
		return atOnce
	}},
	{"SCRIPT FLUSH", func(ctx context.Context, f *fleet, _ *redistest.FaultProxy) func() {
		f.admin.ScriptFlush(ctx)
		return atOnce
	}},
	{"subscriptions killed", func(ctx context.Context, f *fleet, _ *redistest.FaultProxy) func() {
		f.admin.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub")
		return atOnce
	}},
	{"connections killed", func(ctx context.Context, f *fleet, _ *redistest.FaultProxy) func() {
		f.admin.Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		return atOnce
	}},
	{"the feed's log cut off", func(ctx context.Context, f *fleet, _ *redistest.FaultProxy) func() {
		cutOff.Run(ctx, f.rows, nil)
		return atOnce
	}},
	{"one process cut off", func(_ context.Context, _ *fleet, one *redistest.FaultProxy) func() {
		one.Refuse(true)
		one.Cut()
		return func() { one.Refuse(false) }
	}},
	{"one process delayed", func(_ context.Context, _ *fleet, one *redistest.FaultProxy) func() {
		one.Delay(500 * time.Millisecond)
		return func() { one.Delay(0) }
	}},
	{"one process in a black hole", func(_ context.Context, _ *fleet, one *redistest.FaultProxy) func() {
		one.Blackhole(true)
		return func() { one.Blackhole(false) }
	}},
	{"old connections forgotten", func(_ context.Context, _ *fleet, one *redistest.FaultProxy) func() { one.BlackholeOld(); return atOnce }},
	{"replies lost", func(_ context.Context, _ *fleet, one *redistest.FaultProxy) func() {
		one.CutReplies(20, "EVALSHA")
		return atOnce
	}},
}

// Four processes read single keys and batches, with rules and without, write 1 % in all ways that there are
// and in transactions that fail, follow a feed for what others write, clear tags and all, and are scraped by
// 5 %; one load in a hundred fails. Every 20 to 60 seconds
// (more often in a run of minutes) something is broken for up to eight seconds, a process stopped or killed, or the
// feed's position is lost. All the time: no answer is older than a confirmed write by more than the bound, nor
// another key's; every call ends; nothing in Redis lives for ever; goroutines,
// connections and heap do not grow; and at the end every Get has been counted once and
// no goroutine is left. Beside that each process has a Ledger, which looks at every commit of all of them in Redis and
// in its memory: nothing is old after 60 s, and nothing that it finds breaks what a write has confirmed. Old values
// of writes that nobody has confirmed, as Redis was away or their process was killed, are logged.
func TestSoak(t *testing.T) {
	length := redistest.Long(t)
	f := start(t)
	began := time.Now()
	next, after := began.Add(10*time.Second), func() {}
	var heal time.Time
	var history []sum
	for tick := began; time.Since(began) < length; {
		time.Sleep(50 * time.Millisecond)
		now := time.Now()
		switch {
		case !heal.IsZero() && now.After(heal):
			after()
			heal, next = time.Time{}, now.Add(pause(length))
		case heal.IsZero() && now.After(next):
			var name string
			n, i := rand.IntN(len(faults)+2), rand.IntN(processes)
			if n < len(faults) {
				name, after = faults[n].name, faults[n].do(t.Context(), f, f.proxies[i])
			} else {
				name, after = f.processFault(t, i, n == len(faults))
			}
			t.Logf("%5.0fs  %s %s", now.Sub(began).Seconds(), now.Format(time.TimeOnly), name)
			heal = now.Add(time.Second + rand.N(7*time.Second))
		}
		if now.Sub(tick) >= 10*time.Second {
			tick = now
			s := f.look(t)
			history = append(history, s)
			t.Logf("%5.0fs  %v", now.Sub(began).Seconds(), s)
			s.check(t)
		}
	}
	after()
	f.look(t).check(t)
	for _, c := range f.children {
		c.Send("stop")
	}
	for _, c := range f.children {
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
	steady(t, history)
}

// pause is the time between two faults.
func pause(length time.Duration) time.Duration {
	least := min(20*time.Second, max(2*time.Second, length/60))
	return least + rand.N(2*least)
}

// A sum is what all processes and Redis say at one moment.
type sum struct {
	report
	clients, immortal int64  // of Redis: its connections, its keys without an end
	asked             bool   // whether Redis could be asked
	outages           uint64 // how often a process gave Redis up
	ledgers           verdict
}

func (f *fleet) look(t *testing.T) (s sum) {
	t.Helper()
	for i, c := range f.children {
		if !f.away[i] {
			c.Send("report")
		}
	}
	for i, c := range f.children {
		if f.away[i] {
			continue
		}
		f.last[i] = report{}
		if err := json.Unmarshal([]byte(c.Expect("report ")), &f.last[i]); err != nil {
			t.Fatal(err)
		}
		for _, found := range f.last[i].Found {
			t.Logf("process %d: %s", i, found)
		}
	}
	for _, r := range slices.Concat(f.last[:], f.gone) {
		s.Reads, s.Writes, s.Absent = s.Reads+r.Reads, s.Writes+r.Writes, s.Absent+r.Absent
		s.Batches, s.Uncached = s.Batches+r.Batches, s.Uncached+r.Uncached
		s.Errors, s.Unconfirmed, s.Failed, s.Marked = s.Errors+r.Errors, s.Unconfirmed+r.Unconfirmed, s.Failed+r.Failed, s.Marked+r.Marked
		s.Late, s.TooLate, s.Oldest = s.Late+r.Late, s.TooLate+r.TooLate, max(s.Oldest, r.Oldest)
		s.What = cmp.Or(r.What, s.What)
		s.Wrong, s.Stuck = s.Wrong+r.Wrong, s.Stuck+r.Stuck
		s.Goroutines, s.Heap = max(s.Goroutines, r.Goroutines), max(s.Heap, r.Heap)
		s.outages += r.Stats.Rebuild.Outages
		s.Broken += r.Broken
		s.ledgers.add(r.Stats.Ledger)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	s.asked = f.admin.Ping(ctx).Err() == nil
	if !s.asked {
		return s // it is broken just now
	}
	// One script sees all keys at one moment; KEYS is what no service may do.
	n, err := f.admin.Eval(ctx, `local n = 0
		for _, key in ipairs(redis.call('KEYS', '*')) do
			if redis.call('PTTL', key) == -1 then n = n + 1 end
		end
		return n`, nil).Int64()
	if s.asked = err == nil; s.asked {
		s.immortal, s.clients = n, f.redis.Stat("connected_clients")
	}
	return s
}

func (s sum) String() string {
	text := fmt.Sprintf("%d reads, %d batches, %d writes (%d whose transaction failed), %d scraped; %d not cached, %d errors, %d marked stale, %d unconfirmed; late: %d, too late: %d, oldest %v; wrong %d, stuck %d; %d outages seen; %d goroutines, %.0f MB heap",
		s.Reads, s.Batches, s.Writes, s.Failed, s.Absent, s.Uncached, s.Errors, s.Marked, s.Unconfirmed, s.Late, s.TooLate, s.Oldest.Round(time.Millisecond), s.Wrong, s.Stuck, s.outages, s.Goroutines, float64(s.Heap)/1e6)
	if s.asked {
		text += fmt.Sprintf("; Redis: %d connections, %d keys without end", s.clients, s.immortal)
	}
	return text + fmt.Sprintf("\n%v; broken %d", s.ledgers, s.Broken)
}

// check fails the test for what must never be.
func (s sum) check(t *testing.T) {
	t.Helper()
	if s.Broken > 0 || s.ledgers.Old[len(ages)-1] > 0 {
		t.Errorf("%v; %d of them break what a write has confirmed", s.ledgers, s.Broken)
	}
	if s.TooLate+s.Wrong+s.Stuck+s.immortal > 0 {
		t.Errorf("too late %d (the oldest %v), wrong %d (%s), stuck %d, keys without end %d", s.TooLate, s.Oldest, s.Wrong, s.What, s.Stuck, s.immortal)
	}
}

// steady compares the last quarter of the run with the second one: the first warms up.
func steady(t *testing.T, history []sum) {
	t.Helper()
	if len(history) < 8 {
		return // too short to tell
	}
	quarter := len(history) / 4
	middle := func(part []sum, of func(sum) int64) int64 {
		var all []int64
		for _, s := range part {
			all = append(all, of(s))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	for _, watched := range []struct {
		name  string
		of    func(sum) int64
		slack int64
	}{
		{"goroutines", func(s sum) int64 { return int64(s.Goroutines) }, 30},
		{"bytes of heap", func(s sum) int64 { return int64(s.Heap) }, 8 << 20},
		{"connections", func(s sum) int64 { return s.clients }, 40},
	} {
		before, now := middle(history[quarter:2*quarter], watched.of), middle(history[len(history)-quarter:], watched.of)
		t.Logf("%s: %d, at the end %d", watched.name, before, now)
		if now > before+before/10+watched.slack {
			t.Errorf("%s grow from %d to %d", watched.name, before, now)
		}
	}
}

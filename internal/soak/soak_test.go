package soak

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
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
	t         *testing.T
	redis, db *redistest.Server
	replica   *redistest.Server // of redis; a failover exchanges them, and their clients
	proxies   []*redistest.FaultProxy
	children  []*redistest.ChildProcess
	started   [processes]int    // how many others were started in the place of the first one
	away      [processes]bool   // is stopped or killed
	last      [processes]report // of each process
	gone      []report          // the last ones of those that were killed
	admin     *redis.Client     // of redis
	standby   *redis.Client     // of replica
	rows      *redis.Client
	finds     []found // since the last look
	judge     judge
}

func start(t *testing.T) *fleet {
	f := &fleet{t: t, redis: redistest.Start(t), replica: redistest.Start(t), db: redistest.Start(t)}
	impatient := func(o *redis.Options) { o.DialerRetries, o.ContextTimeoutEnabled = 1, true }
	f.admin, f.standby = f.redis.Client(t, impatient), f.replica.Client(t, impatient)
	host, port, _ := net.SplitHostPort(f.redis.Addr())
	if err := f.standby.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	f.rows = f.db.Client(t)
	rows := f.rows.Pipeline()
	for id := range int64(products) {
		rows.Set(t.Context(), row(id), 1, 0)
	}
	if _, err := rows.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.judge.lacked = func(id, after, upTo int64) ([]change, error) {
		return readChanges(context.WithoutCancel(t.Context()), f.rows, id, after, upTo)
	}
	for i := range processes {
		f.proxies = append(f.proxies, redistest.Proxy(t, f.redis.Addr()))
		f.children = append(f.children, f.child(i))
	}
	return f
}

// Four processes read single keys and batches, with rules and without, write 1 % in all ways that there are
// and in transactions that fail, follow a feed for what others write, clear tags and all, and are scraped by
// 5 %; one load in a hundred fails. Every 20 to 60 seconds (more often in a run of minutes) a fault happens
// for up to eight seconds, every one once before one comes again. A process that was killed comes back with
// another Schema.
//
// All the time: no answer is older than a confirmed write by more than the bound, nor another key's; every call
// ends; nothing in Redis lives for ever; goroutines, connections and heap do not grow; and at the end every Get
// has been counted once and no goroutine is left. Beside that each process has a Ledger, which looks at every
// commit of all of them in Redis and in its memory: no value lacks a confirmed change after 60 s, and nothing
// that it finds breaks what a write has confirmed. Values that lack a change that nobody has confirmed, as
// Redis was away or its process was killed, are counted and logged.
func TestSoak(t *testing.T) {
	length := redistest.Long(t)
	f := start(t)
	began := time.Now()
	next, after := began.Add(10*time.Second), atOnce
	var left deck
	var heal time.Time
	var history []sum
	for tick := began; time.Since(began) < length; {
		time.Sleep(50 * time.Millisecond)
		now := time.Now()
		switch {
		case !heal.IsZero() && now.After(heal):
			after()
			after = atOnce // it must not heal twice: that would start another process
			f.judge.faults.heal(time.Now())
			heal, next = time.Time{}, now.Add(pause(length))
		case heal.IsZero() && now.After(next):
			var name string
			name, after = f.fail(&left)
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
	last := f.look(t)
	t.Logf("at the end: %v", last)
	last.check(t)
	text, never := f.judge.faults.ran(length)
	t.Logf("faults:%s", text)
	if len(never) > 0 {
		t.Errorf("faults that have never run: %q", never)
	}
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

// fail breaks what the deck deals, and returns its name and what heals it.
func (f *fleet) fail(left *deck) (name string, heal func()) {
	i, next, now := rand.IntN(processes), left.draw(), time.Now()
	heal, err := next.do(f.t.Context(), f, i)
	if err != nil {
		f.t.Logf("%s has not run: %v", next.name, err)
	}
	one := ""
	if next.one {
		one = "process " + f.name(i)
	}
	f.judge.faults.begin(next.name, one, now, err == nil)
	return strings.TrimSpace(next.name + " " + one), heal
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
	judged            string   // the judge's summary
	forbidden         []string // its failures
}

// ask has a process report.
func (f *fleet) ask(i int) {
	f.t.Helper()
	f.children[i].Send("report")
	f.last[i] = report{}
	if err := json.Unmarshal([]byte(f.children[i].Expect("report ")), &f.last[i]); err != nil {
		f.t.Fatal(err)
	}
	for _, old := range f.last[i].Found {
		f.finds = append(f.finds, found{old, f.name(i)})
	}
	f.last[i].Found = nil
}

// mostLogged is how many old values a look logs, and ten times as many that lack a confirmed change.
const mostLogged = 10

// judgeFinds judges the old values of all processes.
func (f *fleet) judgeFinds() {
	f.t.Helper()
	important, others, err := f.judge.judge(f.finds, time.Now())
	if err != nil {
		f.t.Fatal(err)
	}
	f.finds = nil
	for _, text := range slices.Concat(important[:min(len(important), 10*mostLogged)], others[:min(len(others), mostLogged)]) {
		f.t.Log(text)
	}
	if more := max(0, len(important)-10*mostLogged) + max(0, len(others)-mostLogged); more > 0 {
		f.t.Logf("and %d old values more", more)
	}
}

func (f *fleet) look(t *testing.T) (s sum) {
	t.Helper()
	for i := range f.children {
		if !f.away[i] {
			f.ask(i)
		}
	}
	f.judgeFinds()
	for _, r := range slices.Concat(f.last[:], f.gone) {
		s.Reads, s.Writes, s.Absent = s.Reads+r.Reads, s.Writes+r.Writes, s.Absent+r.Absent
		s.Batches, s.Uncached = s.Batches+r.Batches, s.Uncached+r.Uncached
		s.Errors, s.Unconfirmed, s.Failed, s.Marked = s.Errors+r.Errors, s.Unconfirmed+r.Unconfirmed, s.Failed+r.Failed, s.Marked+r.Marked
		s.Late, s.TooLate, s.Oldest = s.Late+r.Late, s.TooLate+r.TooLate, max(s.Oldest, r.Oldest)
		s.What = cmp.Or(r.What, s.What)
		s.Wrong, s.Stuck = s.Wrong+r.Wrong, s.Stuck+r.Stuck
		s.outages += r.Stats.Rebuild.Outages
		s.Broken, s.Untold = s.Broken+r.Broken, s.Untold+r.Untold
		s.ledgers.add(r.Stats.Ledger)
	}
	for _, r := range f.last { // a process that was killed under load would stay the largest for ever
		s.Goroutines, s.Heap = max(s.Goroutines, r.Goroutines), max(s.Heap, r.Heap)
	}
	counted := redistest.Must(f.rows.HGetAll(t.Context(), "changes:counted").Result())
	s.judged = f.judge.summary(number(counted["all"]), number(counted["confirmed"]), number(counted["unconfirmed"]))
	s.forbidden = f.judge.failures
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	s.asked = f.admin.Ping(ctx).Err() == nil
	if !s.asked {
		return s // it is broken just now
	}
	n, err := immortals.Eval(ctx, f.admin, nil).Int64()
	if s.asked = err == nil; s.asked {
		s.immortal, s.clients = n, f.redis.Stat("connected_clients")
	}
	return s
}

// immortals counts keys without an end. One script sees all keys at one moment; KEYS is what no service may do.
var immortals = redis.NewScript(`
local n = 0
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('PTTL', key) == -1 then n = n + 1 end
end
return n`)

func (s sum) String() string {
	text := fmt.Sprintf("%d reads, %d batches, %d writes (%d whose transaction failed), %d scraped; %d not cached, %d errors, %d marked stale, %d unconfirmed; late: %d, too late: %d, oldest %v; wrong %d, stuck %d; %d outages seen; %d goroutines, %.0f MB heap",
		s.Reads, s.Batches, s.Writes, s.Failed, s.Absent, s.Uncached, s.Errors, s.Marked, s.Unconfirmed, s.Late, s.TooLate, s.Oldest.Round(time.Millisecond), s.Wrong, s.Stuck, s.outages, s.Goroutines, float64(s.Heap)/1e6)
	if s.asked {
		text += fmt.Sprintf("; Redis: %d connections, %d keys without end", s.clients, s.immortal)
	}
	return text + fmt.Sprintf("\n%v; broken %d, not told %d\n%s", s.ledgers, s.Broken, s.Untold, s.judged)
}

// check fails the test for what must never be.
func (s sum) check(t testing.TB) {
	t.Helper()
	if s.Broken > 0 {
		t.Errorf("%v; %d of them break what a write has confirmed", s.ledgers, s.Broken)
	}
	if len(s.forbidden) > 0 {
		t.Errorf("%d values lack a confirmed change after 60 s, the first one: %s", len(s.forbidden), s.forbidden[0])
	}
	if s.TooLate+s.Wrong+s.Stuck+s.immortal > 0 {
		t.Errorf("too late %d (the oldest %v), wrong %d (%s), stuck %d, keys without end %d", s.TooLate, s.Oldest, s.Wrong, s.What, s.Stuck, s.immortal)
	}
}

// steady compares the last quarter of the run with the second one: the first warms up.
func steady(t testing.TB, history []sum) {
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

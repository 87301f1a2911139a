package mutexrebuild_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

// A fleet is several processes, each a crowd.
type fleet struct {
	t        *testing.T
	children []*redistest.ChildProcess
}

func startFleet(t *testing.T, processes int, addr string, callers int, takes time.Duration) *fleet {
	f := &fleet{t: t}
	for range processes {
		f.children = append(f.children, redistest.Child(t, "crowd", addr, fmt.Sprint(callers), takes.String()))
	}
	f.expect("ready")
	return f
}

func (f *fleet) send(line string) {
	for _, c := range f.children {
		c.Send("%s", line)
	}
}

func (f *fleet) expect(line string) {
	f.t.Helper()
	for _, c := range f.children {
		c.Expect(line)
	}
}

// ask has all processes ask for some ids at once, and waits for their answers.
func (f *fleet) ask(ids ...string) {
	f.t.Helper()
	f.send(strings.Join(ids, " "))
	f.expect("done")
}

// end ends the processes, and returns how often each id was loaded and the sum of
// what they counted: waits, wakes, polls and degraded loads.
func (f *fleet) end() (loads map[string]int, sum [4]int) {
	f.t.Helper()
	f.send("stop")
	loads = map[string]int{}
	for _, c := range f.children {
		for line, ok := c.Next(); ok; line, ok = c.Next() {
			what, rest, _ := strings.Cut(line, " ")
			switch what {
			case "load":
				loads[rest]++
			case "stats":
				var n [4]int
				if _, err := fmt.Sscan(rest, &n[0], &n[1], &n[2], &n[3]); err != nil {
					f.t.Error(err)
				}
				for i := range sum {
					sum[i] += n[i]
				}
			default:
				f.t.Errorf("a process says %q", line)
			}
		}
		if err := c.Wait(); err != nil {
			f.t.Error(err)
		}
	}
	return loads, sum
}

// The main promise, as it is meant: eight processes of the operating system, each
// with many callers, all asking for the same cold key at the same time.
func TestEightProcessesLoadAColdKeyOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rounds := redistest.Pick(100, 1000)
	f := startFleet(t, 8, s.Addr(), redistest.Pick(50, 200), 20*time.Millisecond)
	began := time.Now()
	for round := range rounds {
		f.ask(fmt.Sprint(round))
	}
	t.Logf("%d rounds in %v", rounds, time.Since(began))
	loads, sum := f.end()
	for round := range rounds {
		if n := loads[fmt.Sprint(round)]; n != 1 {
			t.Errorf("round %d: %d loads", round, n)
		}
	}
	t.Logf("%d waits, ended by %d messages and %d polls", sum[0], sum[1], sum[2])
	if sum[1] == 0 || sum[0] != sum[1]+sum[2] || sum[3] != 0 {
		t.Errorf("%d waits, ended by %d messages and %d polls; %d loads without a lease", sum[0], sum[1], sum[2], sum[3])
	}
}

// What others wait for a holder that was killed is what is left of its lease.
// Then one of them loads.
func TestAKilledHolderDelaysOthersByALeaseAtMost(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	const lease = 4 * time.Second
	f := startFleet(t, 3, s.Addr(), 10, 10*time.Millisecond)
	kills := redistest.Pick(2, 30)
	var took []time.Duration
	for range kills {
		rdb.Del(t.Context(), valueKey("x"))
		b := redistest.Child(t, "builder", s.Addr(), lease.String(), "never")
		b.Expect("at:loading")
		f.send("x")
		redistest.Eventually(t, 30*time.Second, "somebody waits", func() bool {
			return rdb.HExists(t.Context(), leaseKey("x"), "w").Val()
		})
		time.Sleep(lease / 2) // over a renewal
		b.Kill()
		killed := time.Now()
		f.expect("done")
		took = append(took, time.Since(killed))
	}
	loads, _ := f.end()
	slices.Sort(took)
	worst := took[len(took)-1]
	t.Logf("%d kills, with a lease of %v: median %v, at most %v", kills, lease, took[len(took)/2], worst)
	if worst > lease+3*time.Second { // two leases are 8 s
		t.Errorf("it took %v", worst)
	}
	if loads["x"] != kills {
		t.Errorf("%d loads after %d kills", loads["x"], kills)
	}
	everyKeyEnds(t, rdb)
}

// A holder that is stopped in mid-load, by a debugger, a garbage collection or the
// machine's sleep, goes on with an old value in its hands and does not know. Its
// publication is refused and it loads again. To publish without asking for the
// lease stores the old value here.
func TestAHolderThatWasPausedPastItsLeasePublishesNothingOld(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]bool{"the value was written meanwhile": true, "it was rebuilt and dropped": false} {
		t.Run(name, func(t *testing.T) {
			r := onServer(t)
			g := r.group(opts{})
			for range redistest.Pick(1, 200) {
				r.must(r.rdb.Del(r.ctx, valueKey("x")).Err())
				b := redistest.Child(t, "builder", r.server.Addr(), "30s", "old", "new")
				b.Expect("at:loading")
				b.Stop()
				r.must(r.rdb.PExpire(r.ctx, leaseKey("x"), time.Millisecond).Err()) // as if it was stopped for longer
				r.eventually("its lease has ended", func() bool { return r.rdb.Exists(r.ctx, leaseKey("x")).Val() == 0 })
				if write {
					r.must(g.Invalidate(r.ctx, "x"))
				}
				r.want(g, "x", "new", gives("new"))
				if !write {
					r.must(r.rdb.Del(r.ctx, valueKey("x")).Err())
				}
				b.Cont()
				b.Go("loading")
				if !write {
					b.Expect("at:loading") // there is nothing, so it loads again
					b.Go("loading")
				}
				want := `"new" <nil>, 1 loads, 1 refused`
				if !write {
					want = `"new" <nil>, 2 loads, 1 refused`
				}
				if got := b.Expect("got "); got != want {
					r.Errorf("it got %s, want %s", got, want)
				}
				if got := r.stored("x"); got != "new" {
					r.Errorf("Redis has %q", got)
				}
				r.must(b.Wait())
			}
		})
	}
}

// A Redis that comes back empty has lost values, leases, scripts and subscriptions.
// Each key is rebuilt once, and what was being built is built again.
func TestARedisThatComesBackEmpty(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	f := startFleet(t, 4, s.Addr(), 4, time.Millisecond)
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprint(i))
	}
	f.ask(ids...)
	f.ask(ids...)
	b := redistest.Child(t, "builder", s.Addr(), "20s", "before", "after")
	b.Expect("at:loading")

	s.Restart()
	f.send("live")
	f.expect("is live")
	f.ask(ids...)
	loads, sum := f.end()
	for _, id := range ids {
		if loads[id] != 2 {
			t.Errorf("%q was loaded %d times, want once before and once after", id, loads[id])
		}
	}
	if sum[3] != 0 {
		t.Errorf("%d loads without a lease", sum[3])
	}
	b.Go("loading")
	b.Expect("at:loading")
	b.Go("loading")
	if got, want := b.Expect("got "), `"after" <nil>, 2 loads, 1 refused`; got != want {
		t.Errorf("the builder got %s, want %s", got, want)
	}
	everyKeyEnds(t, s.Client(t))
}

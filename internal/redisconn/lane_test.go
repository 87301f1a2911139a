package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

// A gate is a hook that holds everything up until it is opened, and counts what is sent.
type gate struct {
	redistest.EachCommand // for its DialHook
	trips, most, now      atomic.Int64
	commands              atomic.Int64
	open                  chan struct{}
	fail                  func(cmds []redis.Cmder) error
}

func newGate() *gate { return &gate{open: make(chan struct{})} }

func (g *gate) pass(cmds []redis.Cmder) error {
	if name := cmds[0].Name(); name != "getrange" && name != "evalsha" && name != "eval" {
		return nil
	}
	g.trips.Add(1)
	g.commands.Add(int64(len(cmds)))
	now := g.now.Add(1)
	defer g.now.Add(-1)
	for most := g.most.Load(); now > most && !g.most.CompareAndSwap(most, now); most = g.most.Load() {
	}
	<-g.open
	if g.fail != nil {
		return g.fail(cmds)
	}
	return nil
}

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := g.pass([]redis.Cmder{cmd}); err != nil {
			return err
		}
		return next(ctx, cmd)
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := g.pass(cmds); err != nil {
			return err
		}
		return next(ctx, cmds)
	}
}

// Four lone ones and four trips are under way; all others gather. Without lanes each of
// the thousand is a round trip and a connection.
func TestAThousandReadsRideInAFewTrips(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb, g := m.Client(t), newGate()
		rdb.AddHook(g)
		rdb.Set(t.Context(), "k7", "v7", 0)
		c := redisconn.New(rdb, opTimeout, 1)
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				data, err := c.Read(t.Context(), fmt.Sprint("k", i), 10)
				if want := map[int]string{7: "v7"}[i]; err != nil || string(data) != want {
					t.Errorf("read %d: got %q, %v, want %q", i, data, err, want)
				}
			})
		}
		synctest.Wait()
		if n := g.now.Load(); n != 8 {
			t.Errorf("%d under way, want 8", n)
		}
		close(g.open)
		all.Wait()
		if n, most := g.trips.Load(), g.most.Load(); n > 16 || most > 8 {
			t.Errorf("%d round trips, at most %d at a time; want 16 and 8 at most", n, most)
		}
	})
}

// Two are lone, and each of four trips has one read for all who have gathered; so has the trip that follows.
// Catches callers who each read for themselves.
func TestAThousandCallersOfOneKeyShareItsReads(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb, g := m.Client(t), newGate()
		rdb.AddHook(g)
		rdb.Set(t.Context(), "k", "v", 0)
		rdb.Set(t.Context(), "other", "o", 0)
		c := redisconn.New(rdb, opTimeout, 1)
		var all sync.WaitGroup
		for i := range 1000 {
			key, want, longest := "k", "v", 10
			switch i % 100 {
			case 0:
				key, want = "other", "o" // in the same trips
			case 1:
				want, longest = "", 0
			}
			all.Go(func() {
				if data, err := c.Read(t.Context(), key, longest); err != nil || string(data) != want && longest > 0 {
					t.Errorf("read %d: got %q, %v", i, data, err)
				}
			})
		}
		synctest.Wait()
		close(g.open)
		all.Wait()
		if n := g.commands.Load(); n > 7+4*10 { // of k, and each other reader may come between two of k
			t.Errorf("%d commands, want 47 at most", n)
		}
	})
}

// Each of several keys has a reply of its own, whether or not others read it too. Catches a ReadMany of one
// key that shares a read and looks at its own command, which was never sent.
func TestReadManyOfOneKeyHasItsValue(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb, g := m.Client(t), newGate()
		rdb.AddHook(g)
		rdb.Set(t.Context(), "k", "v", 0)
		c := redisconn.New(rdb, opTimeout, 1)
		var all sync.WaitGroup
		for i := range 40 { // the first take all places of a lane, and the others gather
			all.Go(func() {
				if data, err := c.Read(t.Context(), "k", 10); err != nil || string(data) != "v" {
					t.Errorf("Read: %q, %v", data, err)
				}
			})
			all.Go(func() {
				values, errs := c.ReadMany(t.Context(), []string{"k"}, 10)
				if errs[0] != nil || string(values[0]) != "v" {
					t.Errorf("ReadMany: %q, %v", values, errs)
				}
			})
			if i%10 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		close(g.open)
		all.Wait()
	})
}

// A long value does not keep the short ones of a trip waiting, though its callers share its read.
func TestALongValueThatIsSharedHasATripOfItsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb := m.Client(t)
		rdb.Set(t.Context(), "long", strings.Repeat("x", 1<<20), 0)
		c := redisconn.New(rdb, opTimeout, 1)
		if _, err := c.Read(t.Context(), "long", 2<<20); err != nil {
			t.Fatal(err)
		}
		g := newGate()
		var mixed atomic.Bool
		g.fail = func(cmds []redis.Cmder) error {
			for _, cmd := range cmds {
				if len(cmds) > 1 && cmd.Args()[1] == "long" {
					mixed.Store(true)
				}
			}
			return nil
		}
		rdb.AddHook(g)
		var all sync.WaitGroup
		for i := range 200 {
			key := "long"
			if i%2 == 0 {
				key = fmt.Sprint("k", i)
			}
			all.Go(func() { _, _ = c.Read(t.Context(), key, 2<<20) })
		}
		synctest.Wait()
		close(g.open)
		all.Wait()
		if n := g.commands.Load(); mixed.Load() || n > 120 {
			t.Errorf("the long value shares a trip with others: %v; %d commands", mixed.Load(), n)
		}
	})
}

// heldBack is a hook that keeps the replies of reads back until it is opened.
type heldBack struct {
	redistest.EachCommand
	open chan struct{}
}

func (h *heldBack) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "getrange" {
			<-h.open
		}
		return err
	}
}

func (h *heldBack) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		<-h.open
		return err
	}
}

// A caller may share only a read that is sent after it has asked:
//
//	a read is sent      finds v1, and its reply takes its time
//	a writer            stores v2, and returns
//	a caller            asks now: it has to get v2
func TestAReadThatHasBeenSentIsNotShared(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb, h := m.Client(t), &heldBack{open: make(chan struct{})}
		rdb.AddHook(h)
		rdb.Set(t.Context(), "k", "v1", 0)
		c := redisconn.New(rdb, opTimeout, 1)
		var all sync.WaitGroup
		gets := func(want string) {
			all.Go(func() {
				if data, err := c.Read(t.Context(), "k", 10); err != nil || string(data) != want {
					t.Errorf("got %q, %v, want %q", data, err, want)
				}
			})
			synctest.Wait()
		}
		for range 3 { // two are lone, and one is in a trip
			gets("v1")
		}
		rdb.Set(t.Context(), "k", "v2", 0)
		gets("v2")
		gets("v2")
		close(h.open)
		all.Wait()
	})
}

// A caller who leaves gets the error of its own context at once, and stops nobody.
func TestACallerLeavesATripAndTheOthersGoOn(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb, g := m.Client(t), newGate()
		rdb.AddHook(g)
		c := redisconn.New(rdb, opTimeout, 1)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := read(t.Context(), c, "k"); err != nil {
					t.Errorf("one who stays: %v", err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		if err := read(ctx, c, "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Millisecond {
			t.Errorf("one who leaves: %v after %v", err, time.Since(began))
		}
		close(g.open)
		all.Wait()
	})
}

// The reply of a script that its caller has left, or that took too long, is told when it
// is there: it may be a lease that nobody knows of.
func TestALateReplyIsTold(t *testing.T) {
	for name, patience := range map[string]time.Duration{"the caller leaves": time.Millisecond, "the time is up": time.Hour} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
				rdb, g := m.Client(t), newGate()
				rdb.AddHook(g)
				c := redisconn.New(rdb, opTimeout, 1)
				late := make(chan string, 2)
				for _, calls := range [][]redisconn.Call{echoes(1, own), echoes(3, own)} {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					replies := c.Eval(ctx, echo, calls, func(i int, reply redisconn.Reply) {
						if i == len(calls)-1 {
							late <- fmt.Sprint(reply.Err())
						}
					})
					if err := redisconn.FirstError(replies); err == nil {
						t.Fatal("got a reply through a closed gate")
					}
					select {
					case <-late:
						t.Error("told before it was there")
					default:
					}
				}
				close(g.open)
				for range 2 {
					if got := <-late; !strings.HasPrefix(got, "NOSCRIPT") { // miniredis has not seen it
						t.Errorf("got %v", got)
					}
				}
			})
		})
	}
}

// A hook of the user's may panic or fail on our goroutine. All who ride with it get that
// as their error, and the lane goes on.
func TestWhatAHookDoesIsTheErrorOfItsTrip(t *testing.T) {
	errHook := errors.New("no")
	for name, fail := range map[string]func([]redis.Cmder) error{
		"fails":  func([]redis.Cmder) error { return errHook },
		"panics": func([]redis.Cmder) error { panic("ouch") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
				rdb, g := m.Client(t), newGate()
				rdb.AddHook(g)
				c := redisconn.New(rdb, time.Second, 1)
				g.fail = fail
				var all sync.WaitGroup
				for range 100 {
					all.Go(func() {
						err := read(t.Context(), c, "k")
						var panicked *contain.PanicError
						if !errors.Is(err, errHook) && !errors.As(err, &panicked) {
							t.Errorf("got %v", err)
						}
					})
				}
				synctest.Wait()
				close(g.open)
				all.Wait()
				g.fail = nil
				if err := read(t.Context(), c, "k"); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			})
		})
	}
}

// An operation gets its own error, and others theirs.
func TestEachOperationOfATripHasItsOwnError(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb := m.Client(t)
		rdb.Set(t.Context(), "k", "v", 0)
		c := redisconn.New(rdb, time.Second, 1)
		noNumber := redisconn.NewScript(`return redis.call("INCR", KEYS[1])`)
		for range 3 { // with and without the script in the server
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					if data, err := c.Read(t.Context(), "k", 10); string(data) != "v" || err != nil {
						t.Errorf("a read: %q, %v", data, err)
					}
				})
				all.Go(func() {
					reply := c.EvalOne(t.Context(), noNumber, redisconn.Call{Keys: []string{"k"}}, nil)
					if reply.Err() == nil || redis.HasErrorPrefix(reply.Err(), "NOSCRIPT") {
						t.Errorf("a script: %v", reply.Err())
					}
				})
			}
			all.Wait()
		}
	})
}

// A trip that hangs leaves its place to the next when its time is up, and when it comes
// back at last, the lane is as before.
func TestAHungTripLeavesItsPlace(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb, g := m.Client(t), newGate()
		rdb.AddHook(g)
		c := redisconn.New(rdb, time.Second, 1) // too long for a lone script
		eval := func() error { return c.EvalOne(t.Context(), echo, echoes(1, own)[0], nil).Err() }
		for range 200 {
			_ = eval()
		}
		if n := g.now.Load(); n > 64 {
			t.Errorf("%d trips are left behind, want 64 at most", n)
		}
		if err := eval(); !errors.Is(err, redisconn.ErrBusy) {
			t.Errorf("got %v, want ErrBusy", err)
		}
		close(g.open)
		synctest.Wait()
		if err := eval(); err != nil {
			t.Error(err)
		}
	})
}

// A megabyte takes a hundred times as long as the rest of a pipeline. Once it is known to
// be long, it does not ride.
func TestALongValueDoesNotRideTwice(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb, g := m.Client(t), newGate()
		rdb.Set(t.Context(), "long", strings.Repeat("x", 1<<20), 0)
		c := redisconn.New(rdb, opTimeout, 1)
		if _, err := c.Read(t.Context(), "long", 2<<20); err != nil {
			t.Fatal(err)
		}
		rdb.AddHook(g)
		var all sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), opTimeout/2) // too short to be lone
		defer cancel()
		for range 10 {
			all.Go(func() { _ = read(ctx, c, "k") })
		}
		synctest.Wait()
		under := g.now.Load()
		all.Go(func() {
			if data, err := c.Read(t.Context(), "long", 2<<20); len(data) != 1<<20 || err != nil {
				t.Errorf("got %d bytes, %v", len(data), err)
			}
		})
		synctest.Wait()
		if now := g.now.Load(); now != under+1 {
			t.Errorf("%d under way, want %d and the long one", now, under)
		}
		close(g.open)
		all.Wait()
	})
}

// A read with nobody to ride with costs the same whatever a Conn's timeout is. Catches one that becomes a trip, with
// twice the allocations and a goroutine, where the timeout is longer than its caller may be held.
func TestALoneReadIsAsQuickWithALongTimeout(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector allocates")
	}
	rdb := redistest.Start(t).Client(t)
	allocations := func(timeout time.Duration) float64 {
		c := redisconn.New(rdb, timeout, 1)
		return testing.AllocsPerRun(1000, func() {
			if err := read(t.Context(), c, "k"); err != nil {
				t.Error(err)
			}
		})
	}
	var short, long float64
	redistest.Eventually(t, 20*time.Second, "they allocate the same", func() bool { // one that is late has a second of trips follow
		short, long = allocations(250*time.Millisecond), allocations(251*time.Millisecond)
		t.Logf("%v allocations within 250ms, %v within 251ms", short, long)
		return long <= short
	})
}

// hurried is the context of a caller who has left always the same time.
type hurried struct {
	context.Context
	left time.Duration
}

func (h hurried) Deadline() (time.Time, bool) { return time.Now().Add(h.left), true }

// A caller with less time than an operation may take reads as quickly. Catches a trip for it, which has three times
// the allocations and a goroutine.
func TestALoneReadIsAsQuickForACallerWithLittleTime(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector allocates")
	}
	rdb := redistest.Start(t).Client(t)
	allocations := func(left time.Duration) float64 {
		c, ctx := redisconn.New(rdb, 250*time.Millisecond, 1), hurried{t.Context(), left}
		return testing.AllocsPerRun(1000, func() {
			if err := read(ctx, c, "k"); err != nil {
				t.Error(err)
			}
		})
	}
	var much, little float64
	redistest.Eventually(t, 20*time.Second, "they allocate nearly the same", func() bool { // one that is late has a second of trips follow
		much, little = allocations(time.Minute), allocations(100*time.Millisecond)
		t.Logf("%v allocations with time, %v without", much, little)
		return little <= much+2
	})
}

// Redis is slower than its callers can wait. Each is back in time, and the first costs its connection: a lone read
// for each would make nothing but new connections.
func TestCallersWithLittleTimeKeepTheirConnections(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb := m.Client(t)
		rdb.Set(t.Context(), "k", "v", 0)
		c := redisconn.New(rdb, 250*time.Millisecond, 100)
		if err := read(t.Context(), c, "k"); err != nil {
			t.Fatal(err)
		}
		m.Before(func(command string, _ []string) {
			if command == "GETRANGE" {
				time.Sleep(100 * time.Millisecond)
			}
		})
		before := rdb.PoolStats().Misses
		for range 6 { // within a second
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
			began := time.Now()
			if err := read(ctx, c, "k"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(began); took != 60*time.Millisecond {
				t.Errorf("back after %v", took)
			}
			cancel()
			time.Sleep(90 * time.Millisecond) // until there is a connection that nobody uses
		}
		if made := rdb.PoolStats().Misses - before; made > 2 {
			t.Errorf("%d new connections", made)
		}
	})
}

// Redis takes longer than a lone read may take. Catches a read that fails before its time is up, one that lasts
// longer, and one that is lone again and again where Redis is slow.
func TestALoneReadHasAllOfItsTime(t *testing.T) {
	const timeout = time.Second
	for _, test := range []struct{ redis, want time.Duration }{
		{400 * time.Millisecond, 650 * time.Millisecond}, // sent again after 250 ms
		{700 * time.Millisecond, 950 * time.Millisecond},
		{time.Hour, timeout},
	} {
		t.Run(test.redis.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
				rdb := m.Client(t)
				rdb.Set(t.Context(), "k", "v", 0)
				c := redisconn.New(rdb, timeout, 1)
				over := make(chan struct{})
				m.Before(func(command string, _ []string) {
					if command == "GETRANGE" {
						select {
						case <-time.After(test.redis):
						case <-over:
						}
					}
				})
				inATrip := min(test.redis, timeout)
				for _, want := range []time.Duration{test.want, inATrip, inATrip} {
					began := time.Now()
					data, err := c.Read(t.Context(), "k", 10)
					if answered := test.redis < timeout; answered != (string(data) == "v") || answered != (err == nil) {
						t.Errorf("got %q, %v", data, err)
					}
					if !errors.Is(err, redisconn.ErrTimeout) && err != nil {
						t.Errorf("got %v, want ErrTimeout", err)
					}
					if took := time.Since(began); took != want {
						t.Errorf("it took %v, want %v", took, want)
					}
				}
				close(over)
				synctest.Wait()
			})
		})
	}
}

// The rest of the test above for a script: it changes things, and so is sent once.
func TestAScriptIsSentOnceInAllOfItsTime(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb := m.Client(t)
		rdb.ScriptLoad(t.Context(), echoText)
		m.Before(func(command string, _ []string) {
			if command == "EVALSHA" {
				time.Sleep(400 * time.Millisecond)
			}
		})
		calls := echoes(1, own)
		wantEchoes(t, rdb, calls, redisconn.New(rdb, time.Second, 1).Eval(t.Context(), echo, calls, nil))
	})
}

// Redis hangs. A caller of a lone read that leaves is back within the 250 ms, give or take an eighth, that its
// goroutine may be held for, however long the timeout is, and Redis is not asked for it again.
func TestACallerWhoLeavesALoneReadIsSoonBack(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		c := redisconn.New(m.Client(t), 10*time.Second, 1)
		asked, _ := hang(t, m)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		began := time.Now()
		err := read(ctx, c, "k")
		if took := time.Since(began); !errors.Is(err, context.Canceled) || took > 282*time.Millisecond {
			t.Errorf("%v after %v", err, took)
		}
		if synctest.Wait(); asked.Load() != 1 {
			t.Errorf("Redis was asked %d times", asked.Load())
		}
	})
}

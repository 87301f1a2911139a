package mutexrebuild_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

// hang keeps a server in a bubble from answering reads of the keys that concern it,
// until heal is called. Asked counts them.
func (r *rig) hang(concerns func(key string) bool) (asked *atomic.Int32, heal func()) {
	asked = new(atomic.Int32)
	over := make(chan struct{})
	r.mini.Before(func(command string, args []string) {
		if isRead(command, args) && concerns(args[0]) {
			asked.Add(1)
			<-over
		}
	})
	heal = sync.OnceFunc(func() { close(over) })
	r.Cleanup(heal) // before the groups and clients, which come first
	return asked, heal
}

// isRead tells a read of a value from the look that begin takes at its head, with the
// server's mutex held.
func isRead(command string, args []string) bool { return command == "GETRANGE" && args[2] != "63" }

func anyKey(string) bool { return true }

// Answers take about as long as the timeout: the probe gets one, all others do not. With
// a probe at once each time, the circuit would open and close ten times a second, and
// each time cost a crowd of callers a timeout.
func TestTheOutageCircuitDoesNotSwing(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.with(r.client(), opts{RedisTimeout: 100 * time.Millisecond})
		r.eventually("messages arrive", g.Live)
		r.mini.Before(func(command string, args []string) {
			if isRead(command, args) && args[2] != "0" { // the probe asks for a byte
				time.Sleep(150 * time.Millisecond)
			}
		})
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				for n := range 2000 {
					r.want(g, fmt.Sprint(i, "-", n), "v", gives("v"))
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		began := time.Now()
		all.Wait()
		took := time.Since(began)
		if n := g.Stats().Outages; n < 20 || time.Duration(n) > took/(400*time.Millisecond) {
			r.Errorf("%d outages in %v", n, took)
		}
	})
}

// Groups of one client find out together, and groups of another for themselves.
func TestTheGroupsOfAClientShareAnOutage(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts{RedisTimeout: 100 * time.Millisecond}
		rdb := r.client()
		one, two, apart := r.with(rdb, o), r.with(rdb, o), r.with(r.client(), o)
		_, heal := r.hang(anyKey)
		for i := range 3 {
			r.want(one, fmt.Sprint(i), "v", gives("v"))
		}
		if !two.Stats().Outage || apart.Stats().Outage {
			r.Error("they do not share what they know, or share it with too many")
		}
		r.checkStats(one, "of the outage", func(s stats) bool { return s.Outage && s.Outages == 1 && s.Unknown == 3 })
		one.Close() // the other goes on to probe
		heal()
		r.eventually("Redis is used again", func() bool { return !two.Stats().Outage })
	})
}

// A server that answers reads is in no outage, whatever it says to scripts. One that
// refuses reads is, however fast it refuses.
func TestWhatIsAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(r *rig, p *redistest.FaultProxy)
		outage bool
	}{
		"read only": {func(r *rig, _ *redistest.FaultProxy) { r.must(r.rdb.ReplicaOf(r.ctx, "127.0.0.1", "1").Err()) }, false},
		"full":      {func(r *rig, _ *redistest.FaultProxy) { r.must(r.rdb.ConfigSet(r.ctx, "maxmemory", "1").Err()) }, false},
		"no replicas": {func(r *rig, _ *redistest.FaultProxy) {
			r.must(r.rdb.ConfigSet(r.ctx, "min-replicas-to-write", "1").Err())
		}, false},
		"no scripts": {func(_ *rig, p *redistest.FaultProxy) { replies(p, "EVALSHA", "-NOPERM this user has no permissions") }, false},
		"foreign keys": {func(r *rig, _ *redistest.FaultProxy) {
			for i := range 30 {
				r.must(r.rdb.LPush(r.ctx, valueKey(fmt.Sprint(i)), "a").Err())
				r.must(r.rdb.Expire(r.ctx, valueKey(fmt.Sprint(i)), time.Minute).Err())
			}
		}, false},
		"loading": {func(_ *rig, p *redistest.FaultProxy) {
			replies(p, "GETRANGE", "-LOADING Redis is loading the dataset in memory")
		}, true},
		"busy":     {func(_ *rig, p *redistest.FaultProxy) { replies(p, "GETRANGE", "-BUSY Redis is busy running a script") }, true},
		"no right": {func(_ *rig, p *redistest.FaultProxy) { replies(p, "GETRANGE", "-NOPERM this user has no permissions") }, true},
		"refuses":  {func(r *rig, p *redistest.FaultProxy) { p.Refuse(true); p.Cut() }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &rig{T: t, ctx: t.Context(), server: redistest.Start(t)}
			r.rdb = r.client()
			p := redistest.Proxy(t, r.server.Addr())
			timeout := 200 * time.Millisecond
			if !c.outage {
				timeout = 10 * time.Second // a busy machine is no outage
			}
			g := r.with(p.Client(t), opts{RedisTimeout: timeout, ErrorHold: -1})
			r.eventually("messages arrive", g.Live)
			r.eventually("the scripts are known", func() bool { // to a busy machine 200 ms may be short
				return r.uses(g, "warm")
			})
			outages := g.Stats().Outages
			c.spoil(r, p)
			var all sync.WaitGroup
			for i := range 30 {
				all.Go(func() { r.want(g, fmt.Sprint(i), "v", gives("v")) })
			}
			all.Wait()
			if !c.outage {
				if n := g.Stats().Outages; n != outages {
					t.Errorf("Redis was given up %d times", n-outages)
				}
				return
			}
			// On a busy machine it is unclear who was slow, and it takes some more of them.
			r.eventually("Redis is given up", func() bool {
				r.want(g, "more", "v", gives("v"))
				return g.Stats().Outages > outages
			})
			p.Heal()
			r.eventually("Redis is used again", func() bool { return !g.Stats().Outage })
		})
	}
}

func replies(p *redistest.FaultProxy, command, with string) {
	p.RewriteReplies(1_000_000, command, func([]byte) []byte { return []byte(with + "\r\n") })
}

// A caller that gives up on a read closes the connection, and the next one opens
// another: 64 impatient callers of a slow Redis make 583 new connections a second
// with go-redis alone. Here each caller that is under way at the beginning costs one, and
// then there are few.
func TestASlowRedisSeesNoStormOfConnections(t *testing.T) {
	lasts := redistest.Pick(3*time.Second, 20*time.Second)
	for name, c := range map[string]struct {
		patience time.Duration
		obeys    bool // contexts, as go-redis does not by default
	}{
		"100 ms to live":                 {patience: 100 * time.Millisecond},
		"no deadline":                    {},
		"100 ms to live, obeys contexts": {patience: 100 * time.Millisecond, obeys: true},
	} {
		for what, strike := range map[string]func(s *redistest.Server, p *redistest.FaultProxy) (end func()){
			"slow": func(_ *redistest.Server, p *redistest.FaultProxy) func() {
				p.Delay(500 * time.Millisecond)
				return p.Heal
			},
			"frozen": func(s *redistest.Server, _ *redistest.FaultProxy) func() { s.Stop(); return s.Cont },
		} {
			t.Run(what+", "+name, func(t *testing.T) {
				t.Parallel()
				r := &rig{T: t, ctx: t.Context(), server: redistest.Start(t)}
				p := redistest.Proxy(t, r.server.Addr())
				rdb := p.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = c.obeys })
				g := r.with(rdb, opts{RedisTimeout: 100 * time.Millisecond})
				r.eventually("messages arrive", g.Live)
				r.eventually("a hit", func() bool { return r.uses(g, "hot") })
				before := p.Opened()
				end := strike(r.server, p)
				began, worst, burst := time.Now(), new(atomic.Int64), new(atomic.Int64)
				time.AfterFunc(time.Second, func() { burst.Store(int64(p.Opened() - before)) })
				const callers = 64
				many(callers, func(caller int) {
					for n := 0; time.Since(began) < lasts; n++ {
						ctx, cancel := r.ctx, context.CancelFunc(func() {})
						if c.patience > 0 {
							ctx, cancel = context.WithTimeout(ctx, c.patience)
						}
						asked := time.Now()
						_, _ = rebuild(ctx, g, fmt.Sprint(caller, "-", n), func(context.Context) (string, error) {
							time.Sleep(time.Millisecond)
							return "v", nil
						})
						for took := int64(time.Since(asked)); ; {
							if old := worst.Load(); took <= old || worst.CompareAndSwap(old, took) {
								break
							}
						}
						cancel()
					}
				})
				first, later := int(burst.Load()), p.Opened()-before-int(burst.Load())
				t.Logf("%d new connections in the first second, %d in %v, a Rebuild took at most %v, %+v",
					first, later, lasts-time.Second, time.Duration(worst.Load()), g.Stats())
				if most := callers + 20; first > most {
					t.Errorf("%d new connections in the first second, want at most %d", first, most)
				}
				if most := int(20 * (time.Since(began) - time.Second).Seconds()); later > most {
					t.Errorf("%d new connections after it, want at most %d", later, most)
				}
				end()
				healed := time.Now()
				r.eventually("Redis is used again", func() bool { return r.uses(g, "hot") })
				t.Logf("used again after %v", time.Since(healed))
			})
		}
	}
}

// Where only some reads are slow there is no outage. If each of them closed its
// connection, this would open six a second.
func TestReadsThatAreSlowNowAndThenDoNotCostAConnectionEach(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.with(r.client(), opts{RedisTimeout: 100 * time.Millisecond})
		r.eventually("messages arrive", g.Live)
		r.want(g, "quick", "v", gives("v"))
		var last atomic.Int64 // began the last slow read
		r.mini.Before(func(command string, args []string) {
			now, was := time.Now().UnixMilli(), last.Load()
			if isRead(command, args) && now > was+150 && last.CompareAndSwap(was, now) {
				time.Sleep(500 * time.Millisecond)
			}
		})
		before, began := r.mini.TotalConnectionCount(), time.Now()
		const lasts = 10 * time.Second
		many(6, func(caller int) {
			time.Sleep(time.Duration(caller) * 10 * time.Millisecond) // so that there is an answer between any two slow ones
			for caller == 0 && time.Since(began) < lasts+time.Second {
				r.want(g, "quick", "v", gives("v"))
				time.Sleep(time.Millisecond)
			}
			for time.Since(began) < lasts {
				r.want(g, fmt.Sprint(caller), "v", gives("v"))
				time.Sleep(time.Millisecond)
			}
		})
		if n := float64(r.mini.TotalConnectionCount() - before); n > 3*lasts.Seconds() || g.Stats().Outages != 0 {
			r.Errorf("%v new connections in %v, %+v", n, lasts, g.Stats())
		}
	})
}

func many(n int, do func(caller int)) {
	var all sync.WaitGroup
	for caller := range n {
		all.Go(func() { do(caller) })
	}
	all.Wait()
}

// A third of a cluster that hangs makes three operations in a row without an answer every
// few milliseconds. An outage of the whole of it would treble the loads of the source.
func TestANodeThatHangsIsNoOutageOfItsCluster(t *testing.T) {
	for name, c := range map[string]struct {
		nodes    int
		answered bool // now and then
		outage   bool
	}{
		"a node of a cluster": {nodes: 3, answered: true, outage: false},
		"a cluster":           {nodes: 3, answered: false, outage: true},
		"a server":            {nodes: 1, answered: true, outage: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				client := r.client()
				rdb := redis.UniversalClient(client)
				if c.nodes > 1 {
					rdb = severalNodes{client}
				}
				g := r.with(rdb, opts{RedisTimeout: 100 * time.Millisecond})
				r.eventually("messages arrive", g.Live)
				r.want(g, "answers", "v", gives("v"))
				r.hang(func(key string) bool { return !c.answered || key != valueKey("answers") })
				var all sync.WaitGroup
				for n := range 100 {
					for i := range 5 {
						all.Go(func() { r.want(g, fmt.Sprint(n, "-", i), "v", gives("v")) })
					}
					all.Go(func() { r.want(g, "answers", "v", gives("v")) })
					time.Sleep(10 * time.Millisecond)
				}
				if got := g.Stats().Outage; got != c.outage {
					r.Errorf("an outage: %v, want %v", got, c.outage)
				}
				all.Wait()
			})
		})
	}
}

// severalNodes is a client that may have several nodes, as far as its type says.
type severalNodes struct{ *redis.Client }

package mutexrebuild_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/mutexrebuild"
)

// refuseWrites makes a server in a bubble refuse invalidations and nothing else.
func (r *rig) refuseWrites() (allow func()) {
	return r.refuse(func(args []string) bool {
		return claims(args) || publishes(args, "i") || args[0] == scriptName("invalidate")
	})
}

// refuse makes it refuse the scripts that are said, by the arguments of EVALSHA.
func (r *rig) refuse(refused func(args []string) bool) (allow func()) {
	r.mini.Server().SetPreHook(func(p *server.Peer, command string, args ...string) bool {
		if command != "EVALSHA" || !refused(args) {
			return false
		}
		p.WriteError("NOREPLICAS Not enough good replicas to write.")
		return true
	})
	return func() { r.mini.Server().SetPreHook(nil) }
}

// claims reports whether a script is the first step of a Set.
func claims(args []string) bool {
	return args[0] == scriptName("begin") && slices.Contains(args, "drop")
}

// publishes reports whether a script is a commit with a message of a kind.
func publishes(args []string, kind string) bool {
	return args[0] == scriptName("commit") && strings.HasPrefix(args[len(args)-1], kind)
}

// scriptName is the name, for EVALSHA, of a script that is sent with common.lua before it.
func scriptName(script string) string {
	var text strings.Builder
	for _, file := range []string{"common", script} {
		lua, err := os.ReadFile("../internal/fleet/scripts/" + file + ".lua")
		if err != nil {
			panic(err)
		}
		text.Write(lua)
	}
	return redis.NewScript(text.String()).Hash()
}

// writers are all that invalidate "x". Each begins while Redis works, and returns what
// is left to be done when it does not.
var writers = map[string]func(r *rig, g *group) (end func() error){
	"Invalidate": func(r *rig, g *group) func() error {
		return func() error { return g.Invalidate(r.ctx, "x") }
	},
	"Set": func(r *rig, g *group) func() error {
		return func() error { return set(r.ctx, g, "x", "new") }
	},
	"Hold": func(r *rig, g *group) func() error {
		end, err := g.Hold(r.ctx, "x")
		r.must(err)
		r.lay("x", "old") // as if another process had Set it meanwhile
		return func() error { return end(r.ctx) }
	},
}

// The old value stands in Redis, and this process knows that it must not. Others
// do not, but learn of it within seconds, though nobody asks again.
func TestWhatRedisDidNotConfirmIsNotReadAndTriedAgain(t *testing.T) {
	for name, writer := range writers {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				db := newSource()
				g, other := r.group(opts{}), r.group(opts{})
				db.write("x", "old")
				r.want(g, "x", "old", db.load("x", 0))
				end := writer(r, g)

				allow := r.refuseWrites()
				db.write("x", "new")
				if err := end(); !errors.Is(err, mutexrebuild.ErrUnavailable) {
					r.Fatalf("got %v", err)
				}
				for range 100 {
					r.loads(g, "x", "new")
					time.Sleep(100 * time.Millisecond)
				}
				r.want(other, "x", "old", db.load("x", 0))
				r.checkStats(g, "while Redis refuses", func(s stats) bool {
					return s.Unconfirmed == 1 && s.Queued == 1 && s.Retried == 0 && !s.Outage
				})

				allow()
				time.Sleep(1300 * time.Millisecond)
				r.loads(other, "x", "new")
				r.finds(g, "x", "new") // a hold would have kept it out of Redis
				r.checkStats(g, "afterwards", func(s stats) bool { return s.Unconfirmed == 0 && s.Retried == 1 && s.Dropped == 0 })
			})
		})
	}
}

// The lease stands as well. The load that has it began before the write.
func TestWhatRedisDidNotConfirmIsNotPublished(t *testing.T) {
	inBubble(t, func(r *rig) {
		db, at := newSource(), newGate()
		g := r.group(opts{})
		db.write("x", "old")
		loading := r.do(g, "x", db.gated("x", at), nil)
		<-at.reached
		allow := r.refuseWrites()
		db.write("x", "new")
		if err := g.Invalidate(r.ctx, "x"); !errors.Is(err, mutexrebuild.ErrUnavailable) {
			r.Fatalf("got %v", err)
		}
		close(at.open)
		loading.mustBe(r, nil)
		if got := r.stored("x"); got != "" {
			r.Errorf("%q has been published", got)
		}
		r.want(g, "x", "new", db.load("x", 0))
		allow()
	})
}

// The key stays closed after a retry, as after an invalidation at once: replicas may lag
// behind the write by then too.
func TestARetryKeepsTheKeyClosedForReplicaLag(t *testing.T) {
	inBubble(t, func(r *rig) {
		g, other := r.group(opts{ReplicaLag: 5 * time.Second}), r.group(opts{})
		allow := r.refuseWrites()
		if err := g.Invalidate(r.ctx, "x"); !errors.Is(err, mutexrebuild.ErrUnavailable) {
			r.Fatalf("got %v", err)
		}
		time.Sleep(10 * time.Second)
		allow()
		r.eventually("it is confirmed", func() bool { return g.Stats().Unconfirmed == 0 })
		time.Sleep(4 * time.Second)
		if r.keeps(other, "x") {
			r.Error("the key is open at once")
		}
		time.Sleep(time.Second)
		if !r.keeps(other, "x") {
			r.Error("the key is still closed")
		}
	})
}

// A later invalidation of the id that succeeds ends the wait at once.
func TestALaterInvalidationStandsForTheEarlierOne(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(opts{})
		allow := r.refuseWrites()
		for range 10 {
			if err := g.Invalidate(r.ctx, "x", "y"); !errors.Is(err, mutexrebuild.ErrUnavailable) {
				r.Fatalf("got %v", err)
			}
		}
		allow()
		r.must(g.Invalidate(r.ctx, "x"))
		r.checkStats(g, "after one", func(s stats) bool { return s.Unconfirmed == 1 && s.Queued == 20 })
		r.must(set(r.ctx, g, "y", "v"))
		r.checkStats(g, "after both", func(s stats) bool { return s.Unconfirmed == 0 && s.Retried == 0 })
		r.finds(g, "y", "v")
	})
}

// During an outage an invalidation costs no time, and is done when the outage ends.
func TestAnInvalidationDuringAnOutage(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.with(r.client(), opts{RedisTimeout: 100 * time.Millisecond})
		r.eventually("messages arrive", g.Live)
		r.want(g, "x", "old", gives("old"))
		_, heal := r.hang(anyKey)
		for i := range 3 {
			r.want(g, fmt.Sprint(i), "v", gives("v"))
		}
		began := time.Now()
		if err := g.Invalidate(r.ctx, "x"); !errors.Is(err, mutexrebuild.ErrUnavailable) || time.Since(began) != 0 {
			r.Errorf("got %v after %v", err, time.Since(began))
		}
		time.Sleep(time.Minute)
		heal()
		opened := time.Now()
		r.eventually("it is confirmed", func() bool { return g.Stats().Unconfirmed == 0 })
		if took := time.Since(opened); took > 710*time.Millisecond || r.stored("x") != "" {
			r.Errorf("after %v Redis has %q", took, r.stored("x"))
		}
	})
}

// The whole story on a real server: one process cannot reach it, another can.
func TestAnOutageDoesNotLeaveAnOldValueBehind(t *testing.T) {
	for name, strike := range map[string]func(p *redistest.FaultProxy){
		"refused":    func(p *redistest.FaultProxy) { p.Refuse(true); p.Cut() },
		"black hole": func(p *redistest.FaultProxy) { p.Blackhole(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &rig{T: t, ctx: t.Context(), server: redistest.Start(t)}
			r.rdb = r.client()
			p := redistest.Proxy(t, r.server.Addr())
			g, other := r.with(p.Client(t), opts{RedisTimeout: 200 * time.Millisecond}), r.group(opts{})
			r.eventually("messages arrive", g.Live)
			db := newSource()
			ids := make([]string, 300) // more than go into one round trip
			for i := range ids {
				ids[i] = fmt.Sprint("id ", i)
				db.write(ids[i], "old")
				r.want(other, ids[i], "old", db.load(ids[i], 0))
			}
			strike(p)
			for _, id := range ids {
				db.write(id, "new")
			}
			if err := g.Invalidate(r.ctx, ids...); !errors.Is(err, mutexrebuild.ErrUnavailable) {
				t.Fatalf("got %v", err)
			}
			var enough atomic.Bool
			var reader sync.WaitGroup
			reader.Go(func() { // it never sees what is in Redis still
				for i := 0; !enough.Load(); i++ {
					id := ids[i%10]
					r.want(g, id, "new", db.load(id, 0))
				}
			})
			defer reader.Wait()
			defer enough.Store(true)
			if r.stored(ids[0]) != "old" {
				t.Error("the old value is gone already")
			}
			began := time.Now()
			p.Heal()
			r.eventually("the others see what is new", func() bool {
				return !slices.ContainsFunc(ids, func(id string) bool {
					got, err := rebuild(r.ctx, other, id, db.load(id, 0))
					return err != nil || got != "new"
				})
			})
			t.Logf("after %v", time.Since(began))
			r.eventually("nothing waits", func() bool { return g.Stats().Unconfirmed == 0 })
			r.want(g, ids[0], "new", fails(errSource))
		})
	}
}

// replicated is a master and a replica whose link goes through a proxy.
func replicated(t *testing.T) (r *rig, link *redistest.FaultProxy) {
	r = &rig{T: t, ctx: t.Context(), server: redistest.Start(t, "--repl-diskless-sync-delay", "0")}
	r.rdb = r.client()
	link = redistest.Proxy(t, r.server.Addr())
	host, port, _ := net.SplitHostPort(link.Addr())
	redistest.Start(t, "--repl-diskless-sync-delay", "0", "--replicaof", host+" "+port)
	// WAIT counts who has what its own connection wrote. After nothing was written it counts
	// a replica that has just connected and confirms nothing for a second yet.
	control := r.server.Client(t, func(o *redis.Options) { o.PoolSize = 1 })
	r.eventually("the replica follows", func() bool {
		control.Set(r.ctx, "written", "", time.Minute)
		return control.Wait(r.ctx, 1, 50*time.Millisecond).Val() == 1
	})
	return r, link
}

// A failover undoes an invalidation that only the master knows of. So without the
// replicas' acknowledgement it is an error.
func TestAnInvalidationWaitsForReplicas(t *testing.T) {
	t.Parallel()
	r, link := replicated(t)
	g := r.with(r.client(), opts{WaitReplicas: 1, RedisTimeout: time.Second})
	two := r.with(r.client(), opts{WaitReplicas: 2, RedisTimeout: time.Second})
	r.eventually("messages arrive", g.Live)
	calls := map[string]func(g *group) error{
		"Invalidate": func(g *group) error { return g.Invalidate(r.ctx, "x") },
		"of many":    func(g *group) error { return g.Invalidate(r.ctx, "x", "y", "z") },
		"Set":        func(g *group) error { return set(r.ctx, g, "x", "v") },
		"Hold": func(g *group) error {
			end, err := g.Hold(r.ctx, "x")
			return errors.Join(err, end(r.ctx))
		},
	}
	each := func(g *group, check func(what string, err error)) {
		for what, call := range calls {
			check(what, call(g))
		}
	}
	patient := r.with(r.client(), opts{WaitReplicas: 1, RedisTimeout: 10 * time.Second}) // a busy machine's replica may take a while
	r.must(r.rdb.ScriptFlush(r.ctx).Err())
	each(patient, func(what string, err error) {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	})
	each(two, func(what string, err error) {
		if !errors.Is(err, mutexrebuild.ErrUnavailable) || !strings.Contains(err.Error(), "1 of 2") {
			t.Errorf("%s with one replica of two: %v", what, err)
		}
	})
	two.Close()
	patient.Close()

	link.Blackhole(true)
	each(g, func(what string, err error) {
		if !errors.Is(err, mutexrebuild.ErrUnavailable) || !strings.Contains(err.Error(), "0 of 1") {
			t.Errorf("%s with the link cut: %v", what, err)
		}
	})
	// The master has done it, and readers go on.
	r.loads(g, "apart", "v")
	r.finds(g, "apart", "v")
	if s := g.Stats(); s.Unconfirmed == 0 || s.Outages != 0 || s.Unknown != 0 {
		t.Errorf("got %+v", s)
	}
	link.Blackhole(false)
	r.eventually("the replica knows", func() bool { return g.Stats().Unconfirmed == 0 })
}

// WAIT asks the node that it is sent to, and has no key to be sent by.
func TestWaitReplicasNeedsOneMaster(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	g, err := newGroup(cluster, opts{WaitReplicas: 1})
	if err == nil {
		g.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "WaitReplicas") {
		t.Error(err)
	}
}

package fleet_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

var epochKey = keys.OfCache("p").Clears()

// The process that clears has the new epoch at once, others after the message, and
// processes that start later find it. Owners are told after it has risen.
func TestAClearRaisesTheEpochEverywhere(t *testing.T) {
	everywhere(t, func(r *rig) {
		var heard atomic.Uint64
		var other *fleet.Group
		other = r.listening(r.client(), fleet.Messages{Cleared: func() { heard.Store(other.Epoch()) }})
		r.eventually("messages arrive", other.Live)
		g, last := r.group(fleet.Keyspace{}), uint64(0)
		if g.Epoch() != 0 {
			r.Errorf("before the first Clear: %d", g.Epoch())
		}
		for range 5 {
			r.must(g.Clear(r.ctx))
			now := g.Epoch()
			if now <= last || g.LoadEpoch() != now {
				r.Errorf("the epoch goes from %d to %d, that of loads is %d", last, now, g.LoadEpoch())
			}
			r.eventually("the other hears of it", func() bool { return other.Epoch() == now && heard.Load() == now })
			if late := r.group(fleet.Keyspace{}); late.Epoch() != now {
				r.Errorf("a late one has %d, want %d", late.Epoch(), now)
			}
			last = now
		}
		if ttl := r.rdb.PTTL(r.ctx, epochKey).Val(); ttl < 365*24*time.Hour {
			r.Errorf("the epoch ends in %v, values may live for a year", ttl)
		}
	})
}

// A process looks at the epoch now and then, also when messages tell of it. Catches one who
// begins to do so anew with each Clear that it hears of, and never ends.
func TestClearsDoNotMultiplyTheReadsOfTheEpoch(t *testing.T) {
	inBubble(t, func(r *rig) {
		var reads atomic.Int64
		rdb := r.client()
		rdb.AddHook(redistest.EachCommand(func(cmd redis.Cmder) {
			if args := cmd.Args(); cmd.Name() == "evalsha" && args[3] == epochKey && args[4] == "look" {
				reads.Add(1)
			}
		}))
		hears, clears := r.listening(rdb, fleet.Messages{}), r.group(fleet.Keyspace{})
		r.eventually("messages arrive", hears.Live)
		for range 20 {
			r.must(clears.Clear(r.ctx))
			time.Sleep(time.Second)
		}
		reads.Store(0)
		time.Sleep(10 * time.Minute)
		if n := reads.Load(); n < 10 || n > 30 {
			r.Errorf("%d reads of the epoch in ten minutes, want one each 30 s", n)
		}
	})
}

// A hash of many counters takes Redis long to read, milliseconds for 20,000, for each process. So it is read less often
// than a small one. Clears go on, so each read is one of all counters.
func TestManyClearedTagsAreReadLessOften(t *testing.T) {
	t.Parallel()
	inBubble(t, func(r *rig) {
		var all atomic.Int64
		rdb := r.client()
		rdb.AddHook(redistest.EachCommand(func(cmd redis.Cmder) {
			if args := cmd.Args(); cmd.Name() == "evalsha" && args[3] == epochKey && args[4] == "look" {
				if args[7] != uint64(math.MaxInt64) { // not only what a message has named
					all.Add(1)
				}
			}
		}))
		clears := r.group(fleet.Keyspace{})
		for tag := range 50 {
			tags := make([]uint32, 100)
			for i := range tags {
				tags[i] = uint32(100*tag + i)
			}
			r.must(clears.ClearTags(r.ctx, tags...))
		}
		hears := r.listening(rdb, fleet.Messages{})
		r.eventually("messages arrive", hears.Live)
		time.Sleep(time.Minute)
		all.Store(0)
		for range 15 {
			r.must(clears.ClearTags(r.ctx, 7))
			time.Sleep(time.Minute)
		}
		if n := all.Load(); n < 3 || n > 7 {
			r.Errorf("all 5000 counters were read %d times in 15 minutes, want once in 3", n)
		}
	})
}

// A server that is full throws the epoch out, or it is lost in a failover. A process
// that starts then knows nothing of the Clear, and would take what is from before
// it; the others put it back.
func TestAnEpochThatRedisHasLostIsPutBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(fleet.Keyspace{})
		r.must(g.Clear(r.ctx))
		want := strconv.FormatUint(g.Epoch(), 10)
		for _, lose := range []func(){
			func() { r.rdb.Del(r.ctx, epochKey) },
			func() { r.rdb.HSet(r.ctx, epochKey, "c", "12345", "l", "12345") },
			func() { r.rdb.HSet(r.ctx, epochKey, "c", "what?") },
			func() { r.rdb.HSet(r.ctx, epochKey, "c", "nan", "f", "nan", "l", "nan") },
			func() { r.rdb.HSet(r.ctx, epochKey, "c", "99999999999999999999") },
		} {
			lose()
			time.Sleep(31 * time.Second)
			if got := r.rdb.HGet(r.ctx, epochKey, "c").Val(); got != want {
				r.Errorf("Redis has %q, want %q", got, want)
			}
		}
		if ttl := r.rdb.PTTL(r.ctx, epochKey).Val(); ttl < 365*24*time.Hour {
			r.Errorf("it ends in %v", ttl)
		}
	})
}

// The clock of a server that takes over may be behind. An epoch that went back
// would let values from before the Clear count.
func TestAnEpochNeverGoesBack(t *testing.T) {
	everywhere(t, func(r *rig) {
		ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
		r.must(r.rdb.HSet(r.ctx, epochKey, "c", ahead, "f", 1, "l", ahead).Err())
		g := r.group(fleet.Keyspace{})
		if g.Epoch() != ahead {
			r.Errorf("it has %d, want %d", g.Epoch(), ahead)
		}
		r.must(r.rdb.Del(r.ctx, epochKey).Err())
		r.must(g.Clear(r.ctx))
		if g.Epoch() != ahead+1 {
			r.Errorf("it has %d, want %d", g.Epoch(), ahead+1)
		}
	})
}

// A message of a Clear carries no epoch: who can publish on the channel cannot end what
// is in Redis, only have the epoch read.
func TestAForgedClearCostsARead(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(fleet.Keyspace{})
		for range 10 {
			r.must(r.rdb.Publish(r.ctx, keys.OfCache("p").Messages(), "cY5XXB4L7Q7BDUTHDQPGG4AEJ3S9007199254740991").Err())
		}
		r.must(r.group(fleet.Keyspace{}).Invalidate(r.ctx, "x"))
		r.eventually("it has read the epoch", g.Live)
		if g.Epoch() != 0 {
			r.Errorf("it has the epoch %d", g.Epoch())
		}
	})
}

// Somebody else's key stands where the epoch belongs: it is left alone, and a Clear fails,
// until the key is gone.
//
// Catches a Clear that keeps the whole process from Redis meanwhile, which may be for ever.
func TestAForeignEpochIsLeftAlone(t *testing.T) {
	everywhere(t, func(r *rig) {
		r.must(r.rdb.RPush(r.ctx, epochKey, "theirs").Err())
		g := r.group(fleet.Keyspace{})
		r.publishes(g, "x", "v")
		r.finds(r.group(fleet.Keyspace{}), "x", "v")
		if r.server != nil { // the other one does not know HELLO
			if err := g.Check(r.ctx); !errors.Is(err, fleet.ErrUnavailable) || !strings.Contains(err.Error(), epochKey) {
				r.Errorf("Check gives %v", err)
			}
		}
		if err := g.Clear(r.ctx); !errors.Is(err, fleet.ErrUnavailable) || !strings.Contains(err.Error(), epochKey) {
			r.Errorf("Clear gives %v", err)
		}
		r.finds(g, "x", "v")
		r.publishes(g, "y", "v")
		r.finds(g, "y", "v")
		r.checkStats(g, "a Clear that cannot be done", func(s fleet.Stats) bool { return s.Unconfirmed == 1 && s.Foreign > 0 && s.Unknown == 0 })
		if n := r.rdb.LLen(r.ctx, epochKey).Val(); n != 1 {
			r.Errorf("a list of %d", n)
		}
		r.must(r.rdb.Del(r.ctx, epochKey).Err())
		r.eventually("it is confirmed after all", func() bool { return g.Epoch() > 0 && g.Stats().Unconfirmed == 0 })
	})
}

// The same when the key comes after a Clear: processes read the epoch now and then, and would
// put it back.
//
// Catches a process that leaves Redis alone because it cannot.
func TestAForeignKeyInPlaceOfAnEpochLeavesTheKnownOne(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(fleet.Keyspace{})
		r.must(g.Clear(r.ctx))
		known := g.Epoch()
		r.lay("x", "v")
		r.must(r.rdb.Del(r.ctx, epochKey).Err())
		r.must(r.rdb.RPush(r.ctx, epochKey, "theirs").Err())
		r.must(r.rdb.Expire(r.ctx, epochKey, time.Hour).Err())
		for range 3 {
			time.Sleep(45 * time.Second) // the epoch is read every 30 seconds
			if got := g.Get(r.ctx, "x")[0]; string(got.Data) != "v" || got.Err != nil {
				r.Errorf("it finds %q, %v", got.Data, got.Err)
			}
			r.lay("x", "v")
			forged := "c" + strings.Repeat("X", 26) // whoever hears it has to read the epoch
			r.must(r.rdb.Publish(r.ctx, keys.OfCache("p").Messages(), forged).Err())
		}
		r.checkStats(g, "the epoch cannot be put back", func(s fleet.Stats) bool { return s.Foreign > 0 })
		if g.Epoch() != known {
			r.Errorf("the epoch goes from %d to %d", known, g.Epoch())
		}
	})
}

// A value whose epoch cannot be told is unknown, not a hit. On a cluster the node of the
// epoch may be away while that of the value answers.
func TestWithoutTheEpochAValueIsUnknown(t *testing.T) {
	t.Parallel()
	r := onServer(t)
	r.publishes(r.group(fleet.Keyspace{}), "x", "v")
	p := redistest.Proxy(t, r.server.Addr())
	p.RewriteReplies(1000, "EVALSHA "+fleet.EpochScript, func([]byte) []byte { return []byte("-CLUSTERDOWN no\r\n") })
	g := r.with(p.Client(t), fleet.Keyspace{})
	if found := g.Get(r.ctx, "x")[0]; found.Err == nil {
		r.Errorf("it finds %q", found.Data)
	}
	r.checkStats(g, "it went on without the epoch", func(s fleet.Stats) bool { return s.Unknown > 0 })
	if g.Live() {
		r.Error("it takes messages for enough")
	}
	p.Heal()
	r.eventually("the epoch is known", g.Live)
	r.finds(g, "x", "v")
}

// A process that clears and never loads remembers no clear for longer than ReplicaLag. Catches one that
// forgets them with its next load, which never comes: 32 bytes more for each clear of any process.
func TestClearsOfLongAgoAreNotRemembered(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(fleet.Keyspace{ReplicaLag: time.Second})
		for range 500 {
			r.must(g.ClearTags(r.ctx, 7))
			time.Sleep(100 * time.Millisecond)
		}
		if n := g.RecentClears(); n > 12 {
			r.Errorf("it remembers %d clears, of which ten are younger than a second", n)
		}
	})
}

// Another process clears a tag between a process's look and what that puts back, and its message is lost. The
// next look finds the clear. Catches one that takes all clears for known that the server knew when it was put
// right: no later look would read them.
func TestAClearBesideWhatIsPutBackIsReadLater(t *testing.T) {
	inBubble(t, func(r *rig) {
		const tag = 7
		var cleared atomic.Uint64
		rdb := r.client()
		rdb.AddHook(redistest.EachCommand(func(cmd redis.Cmder) {
			if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && len(args) > 4 && args[4] == "keep" && cleared.CompareAndSwap(0, uint64(time.Now().UnixMicro())) {
				r.must(r.rdb.HSet(r.ctx, epochKey, "l", cleared.Load(), tag, cleared.Load()).Err())
			}
		}))
		g := r.listening(rdb, fleet.Messages{})
		r.eventually("messages arrive", g.Live)
		before := r.rdb.HGetAll(r.ctx, epochKey).Val()
		r.must(g.ClearTags(r.ctx, 1))
		loaded := g.LoadEpoch()
		r.must(r.rdb.Del(r.ctx, epochKey).Err()) // a failover loses the clear
		r.must(r.rdb.HSet(r.ctx, epochKey, before).Err())
		time.Sleep(31 * time.Second)
		if cleared.Load() <= loaded {
			r.Fatal("it has put nothing back")
		}
		time.Sleep(31 * time.Second)
		if !g.Cleared(loaded, []uint32{tag}) {
			r.Error("it does not know of the other clear")
		}
	})
}

package lock

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// A caller is one process that takes a lock in one mode, as Redis and a memory know it.
type caller struct {
	process string
	mode    mode
	tickets [2]int64 // of its entry; 0: it does not wait
	held    []string // owners
	grants  [2]grant // of the first
}

func (c *caller) entry() string { return string(c.mode) + ":" + c.process + ":1" }

// Twins are a lock in Redis and one in a memory, with which the same is done.
type twins struct {
	rdb     *redis.Client
	stores  [2]store
	local   *localSite
	random  *rand.Rand
	t       target
	callers []*caller
	last    [2]int64 // fences
	owners  int
}

// same does something with both, and returns what is different.
func same[T comparable](w *twins, what string, do func(i int, s store) (T, error)) (T, string) {
	one, err1 := do(0, w.stores[0])
	two, err2 := do(1, w.stores[1])
	if one != two || err1 != nil || err2 != nil {
		return one, fmt.Sprintf("%s: Redis says %v, %v, the process %v, %v", what, one, err1, two, err2)
	}
	return one, ""
}

// step does one random thing, and returns what it was and what is different then.
func (w *twins) step(ctx context.Context) (name, wrong string) {
	c := w.callers[w.random.IntN(len(w.callers))]
	w.t.mode = c.mode
	switch n := w.random.IntN(20); {
	case n < 8:
		return "bid", w.bid(ctx, c, n > 1, n == 7)
	case n < 9 && c.tickets[0] > 0:
		c.tickets = [2]int64{}
		_, wrong = same(w, "leave", func(_ int, s store) (int, error) { return 0, s.leave(ctx, &w.t, c.entry()) })
		return "leave", wrong
	case n < 14 && len(c.held) > 0:
		var keep time.Duration
		if c.mode == once {
			keep = time.Duration(w.random.IntN(2)) * lifetime
		}
		_, wrong = same(w, "release", func(i int, s store) (answer, error) { return s.release(ctx, &c.grants[i], keep) })
		c.hold(c.held[1:])
		return "release", wrong
	case n < 15 && len(c.held) > 0:
		return "transfer", w.change(ctx, c, renewal{lease: lifetime, heir: w.owner(c)})
	case n < 17 && c.grants[0].owner != "": // of a holder, or of one that was
		return "renew", w.change(ctx, c, renewal{lease: time.Duration(w.random.IntN(2)) * lifetime})
	case n < 18 && len(c.held) > 0:
		w.end(ctx, c.held[0])
		return "end", ""
	case n < 19:
		return "force", w.force(ctx)
	}
	w.end(ctx, unclaimed+c.entry())
	return "lapse", ""
}

func (w *twins) owner(c *caller) string {
	w.owners++
	return fmt.Sprint(c.process, ":", w.owners)
}

func (c *caller) hold(owners []string) {
	if c.held = owners; len(owners) > 0 {
		c.grants[0].owner, c.grants[1].owner = owners[0], owners[0]
	}
}

func (w *twins) bid(ctx context.Context, c *caller, wait, more bool) string {
	if len(c.held) > 0 {
		return ""
	}
	w.stores[0].(*redisStore).process = c.process
	b := bid{lease: lifetime, label: c.process}
	for range 1 + w.random.IntN(3) {
		if b.owners = append(b.owners, w.owner(c)); c.mode != read {
			break
		}
	}
	if wait {
		b.entry, b.more = c.entry(), more
	}
	var got [2]bidReply
	what, wrong := same(w, "bid", func(i int, s store) (answer, error) {
		if wait {
			b.ticket = c.tickets[i]
		}
		r, err := s.acquire(ctx, &w.t, b)
		got[i] = r
		return r.answer, err
	})
	if wrong != "" {
		return wrong
	}
	if got[0].busy.waiting != got[1].busy.waiting || (got[0].busy.askAgain > 0) != (got[1].busy.askAgain > 0) {
		return fmt.Sprintf("bid: %+v, %+v", got[0].busy, got[1].busy)
	}
	for i, r := range got {
		if wait {
			c.tickets[i] = r.busy.ticket + r.granted.ticket
		}
		c.grants[i] = grant{target: w.t, owner: b.owners[0], fence: r.granted.fence, ends: r.granted.ends, o: &Options{}}
	}
	if what != answerGranted {
		c.grants = [2]grant{}
		return ""
	}
	c.hold(b.owners)
	fences := [2]int64{got[0].granted.fence, got[1].granted.fence}
	if one, two := cmp.Compare(fences[0], w.last[0]), cmp.Compare(fences[1], w.last[1]); one != two || one < 0 || one == 0 && c.mode != read {
		return fmt.Sprintf("fences %v after %v", fences, w.last)
	}
	w.last = fences
	return ""
}

func (w *twins) change(ctx context.Context, c *caller, r renewal) string {
	what, wrong := same(w, "change", func(i int, s store) (answer, error) {
		r.grant = &c.grants[i]
		got, err := s.change(ctx, r)
		return got.answer, err
	})
	if what == answerOK && r.heir != "" {
		c.hold(append([]string{r.heir}, c.held[1:]...))
	}
	return wrong
}

func (w *twins) force(ctx context.Context) string {
	var last [2]int64
	what, wrong := same(w, "force", func(i int, s store) (a answer, err error) {
		a, last[i], err = s.force(ctx, &w.t, 0)
		return a, err
	})
	if what != answerHeld || wrong != "" {
		return wrong
	}
	_, wrong = same(w, "force", func(i int, s store) (a answer, err error) {
		a, _, err = s.force(ctx, &w.t, last[i])
		return a, err
	})
	return wrong
}

// end ends a lease or a grant.
func (w *twins) end(ctx context.Context, holder string) {
	if record := w.t.record(); w.rdb.HGet(ctx, record, "o").Val() == holder {
		w.rdb.HSet(ctx, record, "x", 1)
	}
	w.rdb.ZAddXX(ctx, w.t.keys[3], redis.Z{Member: holder, Score: 1})
	w.local.at(&w.t, func(l *localLock) {
		if l.owner == holder {
			l.ends = 1
		}
		if _, ok := l.shares[holder]; ok {
			l.shares[holder] = 1
		}
	})
}

// stopTime makes all live on that has not been ended.
func (w *twins) stopTime(ctx context.Context) {
	look := w.rdb.Pipeline()
	found, shares := look.HMGet(ctx, w.t.record(), "o", "x"), look.ZRangeWithScores(ctx, w.t.keys[3], 0, -1)
	_, _ = look.Exec(ctx)
	ends, p := time.Now().Add(lifetime).UnixMilli(), w.rdb.Pipeline()
	for _, c := range w.callers {
		p.ZAdd(ctx, w.t.keys[2], redis.Z{Member: c.process, Score: 1e15})
	}
	if owner, _ := found.Val()[0].(string); isUnclaimed(owner) && found.Val()[1] != "1" {
		p.HSet(ctx, w.t.record(), "x", ends, "l", lifetime.Milliseconds())
	}
	for _, share := range shares.Val() {
		if isUnclaimed(share.Member.(string)) && share.Score > 1 {
			p.ZAdd(ctx, w.t.keys[3], redis.Z{Member: share.Member, Score: float64(ends)})
			p.HSet(ctx, w.t.record(), "l", lifetime.Milliseconds())
		}
	}
	_, _ = p.Exec(ctx)
	w.local.at(&w.t, func(l *localLock) {
		if isUnclaimed(l.owner) && l.ends > 1 {
			l.ends = l.now + lifetime.Milliseconds()
		}
		for holder, ends := range l.shares {
			if isUnclaimed(holder) && ends > 1 {
				l.shares[holder] = l.now + lifetime.Milliseconds()
			}
		}
	})
}

// compare looks at what is kept.
func (w *twins) compare(ctx context.Context) string {
	type state struct {
		held, done     bool
		holders, waits int
		label, queue   string
	}
	queue := w.rdb.ZRange(ctx, w.t.keys[1], 0, -1).Val()
	_, wrong := same(w, "compare", func(i int, s store) (state, error) {
		info, err := s.inspect(ctx, &w.t)
		if i == 1 {
			w.local.at(&w.t, func(l *localLock) { queue = names(l.queue) })
		} else if w.t.mode.shared() || w.t.mode == write { // Redis knows by its end what is not claimed, and stopTime changes that
			for _, share := range w.rdb.ZRangeWithScores(ctx, w.t.keys[3], 0, -1).Val() {
				if isUnclaimed(share.Member.(string)) && share.Score > 1 {
					info.Holders--
				}
			}
		}
		return state{info.Held, info.Done > 0, info.Holders, info.Waiting, info.Label, fmt.Sprint(queue)}, err
	})
	return wrong
}

// A process and the scripts do the same with each kind of lock that is not the model's.
func TestAProcessDoesWhatTheScriptsDoWithEachKind(t *testing.T) {
	t.Parallel()
	s, ctx := redistest.Start(t), t.Context()
	seed := uint64(time.Now().UnixNano())
	w := &twins{rdb: s.Client(t, sendingOnce), local: newLocalSite(), random: rand.New(rand.NewPCG(seed, 1))}
	r := newRedisStore(w.rdb, "p")
	r.prompt = r.patient
	w.stores = [2]store{r, w.local.stores[0]}
	ways := 0
	for _, kind := range []struct {
		kind  keys.LockKind
		modes []mode
	}{{keys.ReadWrite, []mode{write, read}}, {keys.Semaphore, []mode{permit}}, {keys.Once, []mode{once}}, {keys.Mutex, []mode{exclusive}}} {
		for range redistest.Pick(50, 5000) {
			ways++
			w.t = newTarget("", kind.kind, fmt.Sprint("way", ways), kind.modes[0])
			w.t.permits, w.callers, w.last = 2, nil, [2]int64{}
			for n := range 6 {
				w.callers = append(w.callers, &caller{process: fmt.Sprint("p", n), mode: kind.modes[n%len(kind.modes)]})
			}
			var log []string
			for range 40 {
				name, wrong := w.step(ctx)
				log = append(log, name)
				w.stopTime(ctx)
				if wrong = cmp.Or(wrong, w.compare(ctx)); wrong != "" {
					t.Fatalf("seed %d, %s %d, %v: %s", seed, kind.kind, ways, slices.Compact(log), wrong)
				}
			}
		}
	}
}

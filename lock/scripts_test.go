package lock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// A driver takes the model and stores on the same random ways, and sees where they part.
type driver struct {
	sites  []site
	random *rand.Rand
	steps  []step
}

// A site is where a driver's stores keep their locks, and what it does there by hand.
type site interface {
	store(p int) store
	end(ctx context.Context, t *target)        // ends the lease, or the grant
	die(ctx context.Context, t *target, p int) // makes a process count as dead
	stop(ctx context.Context, t *target, m *model) error
	born(ctx context.Context, t *target) int64
	compare(ctx context.Context, t *target, m *model) string
	forget(ctx context.Context, t *target)
	again() bool // it may be asked again for what it has done
}

// A redisSite is a Redis.
type redisSite struct {
	rdb    *redis.Client
	stores [processes]*redisStore
}

// newDriver makes a driver of the scripts, whose stores send each command once. Elsewhere a command
// without an answer is repeated after 100 ms, and a release that is repeated says "past"
// or "again" instead of "ok": on a busy machine that was a difference from the model
// where there is none.
func newDriver(rdb *redis.Client, seed uint64) *driver {
	d := &redisSite{rdb: rdb}
	for i := range d.stores {
		d.stores[i] = newRedisStore(rdb, fmt.Sprintf("p%d", i))
		d.stores[i].prompt = d.stores[i].patient
	}
	return &driver{sites: []site{d}, random: rand.New(rand.NewPCG(seed, 1)), steps: steps()}
}

// sendingOnce makes a client that sends a command once, and waits long for its answer.
func sendingOnce(o *redis.Options) { o.MaxRetries, o.ReadTimeout = -1, time.Minute }

// A way is one lock at one site and what has happened to it so far.
type way struct {
	site
	t       target
	w       *world
	tickets [processes]int64
	grants  [processes]grant // of late
	last    int64            // fence
	since   int64            // first fence since it was forced
}

// difference goes one way, on a lock of its own, and returns where a site parts from the
// model, or "".
func (d *driver) difference(ctx context.Context, name string) string {
	w := &world{m: &model{}}
	var ways []*way
	for _, site := range d.sites {
		ways = append(ways, &way{site: site, t: newTarget("", keys.Mutex, name, exclusive), w: w})
	}
	var log []string
	for len(log) < 25 {
		s := d.steps[d.random.IntN(len(d.steps))]
		before := w.clone()
		taken, wrong := w.do(s)
		if !taken && wrong == "" {
			continue
		}
		log = append(log, fmt.Sprint(s))
		for _, y := range ways {
			for _, check := range []func() string{
				func() string { return wrong },
				func() string { return y.take(ctx, before, s) },
				func() string { return y.stopTime(ctx) },
				func() string { return y.renew(ctx, s.p) },
				func() string { return y.compare(ctx, &y.t, y.w.m) },
			} {
				if wrong := check(); wrong != "" {
					return fmt.Sprintf("%v: %T: %s", log, y.site, wrong)
				}
			}
		}
	}
	for _, y := range ways {
		y.forget(ctx, &y.t)
	}
	return ""
}

// take takes the step that the model has taken.
func (y *way) take(ctx context.Context, before *world, s step) string {
	switch s.name {
	case "lock", "lock more", "try", "poll":
		return y.acquire(ctx, s)
	case "leave":
		y.tickets[s.p] = 0
		if err := y.store(s.p).leave(ctx, &y.t, entryOf(s.p)); err != nil {
			return err.Error()
		}
	case "unlock":
		return y.release(ctx, before, s.p)
	case "pass on": // the store is not asked, and has kept the fence free
		y.grants[s.p].fence++
		y.last = y.grants[s.p].fence
	case "end":
		y.end(ctx, &y.t)
		for p := range y.grants {
			if y.grants[p].owner == y.w.m.owner {
				y.grants[p].ends = 1
			}
		}
	case "force":
		return y.force(ctx, before.m.owner)
	case "dead":
		y.die(ctx, &y.t, s.p)
	}
	return ""
}

func (y *way) acquire(ctx context.Context, s step) string {
	c := y.w.clients[s.p]
	b := bid{owners: []string{c.owner}, lease: lifetime, more: s.name == "lock more", ticket: y.tickets[s.p]}
	if s.name != "try" {
		b.entry = entryOf(s.p)
	}
	r, err := y.store(s.p).acquire(ctx, &y.t, b)
	if err != nil {
		return err.Error()
	}
	again, err := y.store(s.p).acquire(ctx, &y.t, b) // as a client does that got no reply
	if err != nil || r.answer != again.answer || r.busy.ticket != again.busy.ticket ||
		r.granted.ticket != again.granted.ticket || r.granted.fence != again.granted.fence {
		return fmt.Sprintf("%v, asked again %v, %v", r, again, err)
	}
	want := answerBusy
	if c.holds {
		want = answerGranted
	}
	if r.answer != want && (r.answer != answerGone || y.w.m.released != c.owner) {
		return fmt.Sprintf("it says %s, the model %s", r.answer, want)
	}
	switch {
	case r.answer == answerGranted:
		if r.granted.fence <= y.last {
			return fmt.Sprintf("fence %d after %d", r.granted.fence, y.last)
		}
		y.last, y.tickets[s.p] = r.granted.fence, r.granted.ticket
		y.grants[s.p] = grant{target: y.t, o: &Options{}, owner: c.owner, fence: r.granted.fence, ends: r.granted.ends}
	case r.answer == answerBusy && s.name != "try":
		y.tickets[s.p] = r.busy.ticket
	}
	return ""
}

// release gives back, and once more as a client does that got no reply.
func (y *way) release(ctx context.Context, before *world, p int) string {
	m, g := before.m.clone(), &y.grants[p]
	for range 2 {
		said := m.release(g.owner)
		want := map[string]answer{"ok": answerOK, "expired": answerExpired, "again": answerAgain}[said]
		if said == "not mine" {
			want = answerPast // a lease that goes on, by what the client knows
			if g.ends == 1 {
				want = answerTaken
			}
		}
		if got, err := y.store(p).release(ctx, g, 0); err != nil || got != want {
			return fmt.Sprintf("a release says %s, %v, the model %s", got, err, said)
		}
	}
	return ""
}

// renew renews what a process had of late: it must never get the lock by that.
func (y *way) renew(ctx context.Context, p int) string {
	g, m := &y.grants[p], y.w.m
	if g.owner == "" {
		return ""
	}
	want := answerTaken
	switch {
	case g.fence < y.since: // forced, and so taken
	case m.owner == g.owner && m.ended:
		want = answerExpired
	case m.owner == g.owner:
		want = answerOK
	case m.released == g.owner:
		want = answerReleased
	}
	r := y.store(p).renew(ctx, []renewal{{grant: g, lease: lifetime}})[0]
	if r.err != nil || r.answer != want {
		return fmt.Sprintf("a renewal says %s, %v, the model %s", r.answer, r.err, want)
	}
	return ""
}

// stopTime makes what is alive in the model live on, and what has been granted
// but not claimed too: on a busy machine the 3 s and 2 s that they have could pass
// between two steps. The model knows no time but the steps that say so.
func (y *way) stopTime(ctx context.Context) string {
	if err := y.stop(ctx, &y.t, y.w.m); err != nil {
		return err.Error()
	}
	return ""
}

func (r *redisSite) store(p int) store { return r.stores[p] }
func (r *redisSite) again() bool       { return true }

func (r *redisSite) end(ctx context.Context, t *target) { r.rdb.HSet(ctx, t.record(), "x", 1) }

func (r *redisSite) die(ctx context.Context, t *target, p int) {
	r.rdb.ZAdd(ctx, t.keys[2], redis.Z{Member: fmt.Sprintf("p%d", p), Score: 1})
}

func (r *redisSite) forget(ctx context.Context, t *target) { r.rdb.Unlink(ctx, t.keys...) }

func (r *redisSite) born(ctx context.Context, t *target) int64 {
	born, _ := r.rdb.HGet(ctx, t.record(), "b").Int64()
	return born
}

func (r *redisSite) stop(ctx context.Context, t *target, m *model) error {
	p := r.rdb.Pipeline()
	for i, alive := range m.alive {
		if alive {
			p.ZAdd(ctx, t.keys[2], redis.Z{Member: fmt.Sprintf("p%d", i), Score: 1e15})
			p.PExpire(ctx, t.keys[2], lifetime)
		}
	}
	if strings.HasPrefix(m.owner, "g:") && !m.ended && r.rdb.HGet(ctx, t.record(), "o").Val() == m.owner {
		p.HSet(ctx, t.record(), "x", time.Now().Add(lifetime).UnixMilli(), "l", lifetime.Milliseconds())
	}
	_, err := p.Exec(ctx)
	return err
}

// compare looks at what is in Redis.
func (r *redisSite) compare(ctx context.Context, t *target, m *model) string {
	p := r.rdb.Pipeline()
	owner, queue := p.HGet(ctx, t.record(), "o"), p.ZRange(ctx, t.keys[1], 0, -1)
	var lives [processes]*redis.FloatCmd
	for i := range lives {
		lives[i] = p.ZScore(ctx, t.keys[2], fmt.Sprintf("p%d", i))
	}
	var ttls []*redis.DurationCmd
	for _, key := range t.keys {
		ttls = append(ttls, p.PTTL(ctx, key))
	}
	_, _ = p.Exec(ctx)
	if wrong := m.differs(owner.Val(), queue.Val()); wrong != "" {
		return wrong
	}
	for i, alive := range m.alive {
		if lives[i].Val() > 1 != alive {
			return fmt.Sprintf("the life of p%d is %v, the model's %v", i, lives[i].Val(), alive)
		}
	}
	for i, ttl := range ttls {
		if ttl.Val() == -1 {
			return t.keys[i] + " has no TTL"
		}
	}
	return ""
}

// differs returns what is different of an owner and a queue, or "".
func (m *model) differs(owner string, queue []string) string {
	if owner != m.owner || !slices.Equal(queue, m.queue) && len(queue)+len(m.queue) > 0 {
		return fmt.Sprintf("it has %q, %v, the model %q, %v", owner, queue, m.owner, m.queue)
	}
	return ""
}

// lifetime is that of the leases on a way: none of them ends by itself, and each can
// be given back the short way.
const lifetime = 8 * time.Minute

// The real scripts do what the model does, on random ways.
func TestTheScriptsDoWhatTheModelDoes(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	ways, seed := redistest.Pick(60, 100_000), uint64(time.Now().UnixNano())
	var all sync.WaitGroup
	var gone atomic.Int64
	for worker := range 3 {
		d := newDriver(s.Client(t, sendingOnce), seed+uint64(worker))
		all.Go(func() {
			for n := gone.Add(1); n <= int64(ways) && !t.Failed(); n = gone.Add(1) {
				if wrong := d.difference(t.Context(), fmt.Sprint("way", n)); wrong != "" {
					t.Errorf("seed %d, way %d: %s", seed+uint64(worker), n, wrong)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d ways, %d scripts", ways, s.Calls("evalsha"))
}

// What is taken out of the real scripts, a line at a time, shows on those ways: the
// model has teeth, and each of these lines has a test that fails without it.
func TestTheModelSeesWhatIsTakenOutOfTheScripts(t *testing.T) {
	s := redistest.Start(t)
	for name, cut := range map[string]struct {
		script   *string
		from, to string
	}{
		"the owner check of a release":       {&releaseLua, "if found[1] == me and not found[3]", "if not found[3]"},
		"the same with a queue":              {&releaseLua, "expires = owner == me and ends", "expires = owner ~= '' and ends"},
		"the owner check of a renewal":       {&renewLua, "ends = found[1] == who and tonumber(found[2])", "ends = tonumber(found[2])"},
		"the end of what is renewed":         {&renewLua, "if ends <= now then", "if false then"},
		"the claim":                          {&acquireLua, "if mine ~= '' and exclusive(mode) and owner == 'g:' .. mine then", "if false then"},
		"the end of a grant":                 {&queueLua, "if owner ~= '' and ends <= now then", "if owner ~= '' and ends <= now and string.sub(owner, 1, 2) ~= 'g:' then"},
		"the doubt about who does not claim": {&queueLua, "if string.sub(holder, 1, 2) == 'g:' then", "if false then"},
		"the answer to a repeated bid":       {&acquireLua, "if owner == me and ends > now then", "if false then"},
		"the refusal of a late bid":          {&acquireLua, "elseif released == me then", "elseif false then"},
		"the last who released":              {&releaseLua, "if released == me and owner == '' then", "if false then"},
		"its name":                           {&releaseLua, "'HSET', record, 'o', '', 'lr', me, 'm', '')", "'HSET', record, 'o', '', 'm', '')"},
		"the same the short way":             {&releaseLua, "'HSET', record, 'o', '', 'lr', me))", "'HSET', record, 'o', ''))"},
		"the liveness check":                 {&queueLua, "if seen and tonumber(seen) > now then", "if true then"},
		"the hand-off":                       {&releaseLua, "expire(mode)\nadvance()", "expire(mode)"},
		"the order of the queue":             {&acquireLua, "with = math.max(micros, tonumber(last or 0) + 1)", "with = 1"},
		"the way back into the queue":        {&acquireLua, "enqueue(ticket, 3000) -- it counted as dead", "-- it counted as dead"},
		"the birth after a ForceUnlock":      {&forceLua, "'b', fence, ", ""},
		"its answer to a repeated command":   {&forceLua, "if known and ARGV[4] ~= '0' and forced == ARGV[4] then", "if false then"},
		"its hand-off":                       {&forceLua, "expire(mode)\nadvance()", "expire(mode)"},
		"the refusal of a late bid after it": {&forceLua, ", 'lr', owner", ""},
		"the note of the fence":              {&acquireLua, "'f', micros, 'm', ARGV[9])", "'m', ARGV[9])"},
		"the same with a queue in front":     {&acquireLua, "fence = math.max(fence + FENCES, micros)\n  end", "end"},
	} {
		t.Run(name, func(t *testing.T) {
			cutOut(t, cut.script, cut.from, cut.to)
			d, ctx := newDriver(s.Client(t, sendingOnce), 1), t.Context() // always the same ways
			for n := range 5000 {
				if wrong := d.difference(ctx, fmt.Sprint(name, n)); wrong != "" {
					t.Logf("way %d: %s", n+1, wrong)
					return
				}
			}
			t.Error("not seen")
		})
	}
}

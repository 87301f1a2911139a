package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

// A fault breaks something, of one process i or of all, and returns what heals it after a while.
type fault struct {
	name string
	one  bool // is of one process
	do   func(ctx context.Context, f *fleet, i int) (heal func(), err error)
}

func atOnce() {}

// killed is the first fault of a run: a run of a minute has only a third of them.
const killed = "one process killed"

var faults = []fault{
	{killed, true, func(_ context.Context, f *fleet, i int) (func(), error) {
		f.ask(i) // what it has seen would be lost
		f.children[i].Kill()
		f.away[i] = true
		f.judge.faults.kill(f.name(i), time.Now())
		f.gone, f.last[i] = append(f.gone, f.last[i]), report{}
		return func() { f.started[i]++; f.children[i], f.away[i] = f.child(i), false }, nil
	}},
	{"one process stopped", true, func(_ context.Context, f *fleet, i int) (func(), error) {
		f.children[i].Stop()
		f.away[i] = true
		return func() { f.children[i].Cont(); f.away[i] = false }, nil
	}},
	{"Redis stopped", false, func(_ context.Context, f *fleet, _ int) (func(), error) { f.redis.Stop(); return f.redis.Cont, nil }},
	{"Redis killed", false, func(_ context.Context, f *fleet, _ int) (func(), error) {
		f.redis.Kill()
		return f.redis.Restart, nil
	}},
	{"Redis failed over", false, func(ctx context.Context, f *fleet, _ int) (func(), error) { return atOnce, f.failOver(ctx) }},
	{"FLUSHALL", false, func(ctx context.Context, f *fleet, _ int) (func(), error) {
		return atOnce, f.admin.FlushAll(ctx).Err()
	}},
	{"values deleted by hand", false, func(ctx context.Context, f *fleet, _ int) (func(), error) {
		n, err := deleteHalf.Run(ctx, f.admin, nil).Int()
		if err == nil && n == 0 {
			err = errors.New("there is no value")
		}
		return atOnce, err
	}},
	{"SCRIPT FLUSH", false, func(ctx context.Context, f *fleet, _ int) (func(), error) {
		return atOnce, f.admin.ScriptFlush(ctx).Err()
	}},
	{"subscriptions killed", false, func(ctx context.Context, f *fleet, _ int) (func(), error) {
		return atOnce, f.killConnections(ctx, "TYPE", "pubsub")
	}},
	{"connections killed", false, func(ctx context.Context, f *fleet, _ int) (func(), error) {
		return atOnce, f.killConnections(ctx, "TYPE", "normal", "SKIPME", "yes")
	}},
	{"the feed's log cut off", false, func(ctx context.Context, f *fleet, _ int) (func(), error) {
		return atOnce, cutOff.Run(ctx, f.rows, nil).Err()
	}},
	{"one process cut off", true, func(_ context.Context, f *fleet, i int) (func(), error) {
		f.proxies[i].Refuse(true)
		f.proxies[i].Cut()
		return func() { f.proxies[i].Refuse(false) }, nil
	}},
	{"one process delayed", true, func(_ context.Context, f *fleet, i int) (func(), error) {
		f.proxies[i].Delay(500 * time.Millisecond)
		return func() { f.proxies[i].Delay(0) }, nil
	}},
	{"one process in a black hole", true, func(_ context.Context, f *fleet, i int) (func(), error) {
		f.proxies[i].Blackhole(true)
		return func() { f.proxies[i].Blackhole(false) }, nil
	}},
	{"old connections forgotten", true, func(_ context.Context, f *fleet, i int) (func(), error) {
		f.proxies[i].BlackholeOld()
		return atOnce, nil
	}},
	{"replies lost", true, func(_ context.Context, f *fleet, i int) (func(), error) {
		f.proxies[i].CutReplies(20, "EVALSHA")
		return atOnce, nil
	}},
}

// failOver makes the replica the master as a provider does for maintenance: Redis hands over when the replica has
// all that was acknowledged. What a failover loses otherwise, no cache can promise.
func (f *fleet) failOver(ctx context.Context) error {
	host, port, _ := net.SplitHostPort(f.replica.Addr())
	if err := f.admin.Do(ctx, "FAILOVER", "TO", host, port).Err(); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if role, err := f.standby.Do(ctx, "ROLE").Slice(); err == nil && role[0] == "master" {
			break
		}
		if time.Now().After(deadline) {
			return errors.Join(errors.New("the replica is no master yet"), f.admin.Do(ctx, "FAILOVER", "ABORT").Err())
		}
	}
	f.redis, f.replica, f.admin, f.standby = f.replica, f.redis, f.standby, f.admin
	for _, p := range f.proxies {
		p.Redirect(f.redis.Addr())
		p.Cut()
	}
	return nil
}

// deleteHalf deletes every second value, of whatever Schema, and no lease.
var deleteHalf = redis.NewScript(`
local n, seen = 0, 0
for _, key in ipairs(redis.call('KEYS', 'levee:c1:{product:*')) do
  if not key:find(':lock$') then
    seen = seen + 1
    if seen % 2 == 0 then n = n + redis.call('DEL', key) end
  end
end
return n`)

// killConnections ends connections to Redis, and fails if there is none.
func (f *fleet) killConnections(ctx context.Context, which ...any) error {
	n, err := f.admin.Do(ctx, append([]any{"CLIENT", "KILL"}, which...)...).Int()
	if err == nil && n == 0 {
		err = fmt.Errorf("no connection is killed by %v", which)
	}
	return err
}

// A deck deals every fault once, in any order, before it deals one again.
type deck struct{ left []fault }

func (d *deck) draw() (next fault) {
	if d.left == nil {
		d.left = faults[:1:1]
		for _, n := range rand.Perm(len(faults) - 1) {
			d.left = append(d.left, faults[1+n])
		}
	} else if len(d.left) == 0 {
		for _, n := range rand.Perm(len(faults)) {
			d.left = append(d.left, faults[n])
		}
	}
	next, d.left = d.left[0], d.left[1:]
	return next
}

// A faultLog is what was broken, and when.
type faultLog struct {
	spans []span
	kills map[string]time.Time // of the processes by name
}

type span struct {
	name     string
	one      string // the process
	from, to time.Time
	ran      bool
}

func (l *faultLog) kill(name string, now time.Time) {
	if l.kills == nil {
		l.kills = map[string]time.Time{}
	}
	l.kills[name] = now
}

func (l *faultLog) killedAt(name string) time.Time { return l.kills[name] }

func (l *faultLog) begin(name, one string, now time.Time, ran bool) {
	l.spans = append(l.spans, span{name, one, now, time.Time{}, ran})
}

func (l *faultLog) heal(now time.Time) { l.spans[len(l.spans)-1].to = now }

// at tells the fault of a moment, or the last one before it.
func (l *faultLog) at(t time.Time) string {
	for i := len(l.spans) - 1; i >= 0; i-- {
		s := l.spans[i]
		if s.from.After(t) {
			continue
		}
		text := s.name
		if s.one != "" {
			text += " (" + s.one + ")"
		}
		if !s.to.IsZero() && s.to.Before(t) {
			return fmt.Sprintf("none, %s was over for %v", text, t.Sub(s.to).Round(time.Millisecond))
		}
		return fmt.Sprintf("%s for %v", text, t.Sub(s.from).Round(time.Millisecond))
	}
	return "none so far"
}

// enough is how long a run has to be to have every fault.
const enough = 30 * time.Minute

// ran tells how often each fault ran, a line for each, and which never ran in a run that was long enough.
func (l *faultLog) ran(length time.Duration) (text string, never []string) {
	var b strings.Builder
	for _, one := range faults {
		n := 0
		for _, s := range l.spans {
			if s.name == one.name && s.ran {
				n++
			}
		}
		fmt.Fprintf(&b, "\n%4d × %s", n, one.name)
		if n == 0 && length >= enough {
			never = append(never, one.name)
		}
	}
	return b.String(), never
}

func (f *fleet) name(i int) string { return fmt.Sprintf("%d.%d", i, f.started[i]) }

func (f *fleet) child(i int) *redistest.ChildProcess {
	return redistest.Child(f.t, "service", f.proxies[i].Addr(), f.db.Addr(), f.name(i))
}

package linear

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) {
	redistest.Main(m, redistest.Roles{"client": client, "member": member, "follower": follower})
}

const (
	processes = 2
	subjects  = 5 // in each process, with a client each
	callers   = 2 // of each subject
	keys      = 8 // in use at a time; one of them is written by one caller only
	valueTTL  = 20 * time.Millisecond
)

// A pace is what the callers of a time do.
type pace struct {
	keys   int           // in use at a time; one of them is written by one caller only
	epoch  time.Duration // how long they are
	writes int           // beside 16 reads
}

// In a bubble all steps take about the same time. A few keys that are written often make it
// likely that a step of one caller falls between two steps of others.
var (
	realPace   = pace{keys: keys, epoch: 250 * time.Millisecond, writes: 4}
	bubblePace = pace{keys: 4, epoch: 30 * time.Millisecond, writes: 16}
)

// How long a subject waits for Redis: calm, so that a loaded machine is not taken for
// an outage, or where there are outages.
const (
	calm    = 5 * time.Second
	nervous = 100 * time.Millisecond
)

// kinds are those of subjects. In "releases", which come beside them, two releases of a
// cache are deployed and rolled back; in "clears" writers clear the whole cache, in "tags" the tags of a key.
var kinds = []string{"cache", "group"}

// record runs the clients for a while and returns what they did.
func record(t *testing.T, kind, addr string, patience, length time.Duration) (history []op) {
	t.Helper()
	return launch(t, "client", addr, newBoard(t), length, kind, patience.String()).history(t)
}

// client is a process with several subjects of a kind and their callers.
func client(p *redistest.Parent, args []string) error {
	a, err := readTask(args)
	if err != nil {
		return err
	}
	patience, err := time.ParseDuration(a.args[1])
	if err != nil {
		return err
	}
	all, end, err := workers(a, a.args[0], patience, func() *redis.Client {
		// Reads use a copy of a client that does not keep to contexts by itself, and a
		// copy loses hooks.
		rdb := redis.NewClient(&redis.Options{Addr: a.addr, ContextTimeoutEnabled: true})
		rdb.AddHook(pauses{})
		return rdb
	})
	defer end()
	if err != nil {
		return err
	}
	return a.work(p, all)
}

// workers are the callers of a process, whose subjects have a client each that dial makes.
// End closes both.
func workers(a task, kind string, patience time.Duration, dial func() *redis.Client) (all []worker, end func(), err error) {
	var closers []func()
	end = func() {
		for _, closer := range slices.Backward(closers) {
			closer()
		}
	}
	subjects, callers, own := subjects, callers, 0
	if kind == "clears" || kind == "tags" || kind == "failing" {
		subjects, callers, own = 1, subjects*callers, a.process
	}
	for n := range subjects {
		rdb := dial()
		closers = append(closers, func() { _ = rdb.Close() })
		s, err := newSubject(kind, a.process, n, rdb, a.db, patience)
		if err != nil {
			return nil, end, err
		}
		closers = append(closers, s.close)
		for c := range callers {
			one := &caller{id: (a.process*subjects+n)*callers + c, subject: s, db: a.db, most: 1, own: own, pace: a.pace}
			if kind != "group" {
				one.most = 4
			}
			all = append(all, func(begin time.Time) ([]op, error) {
				one.run(begin, a.length)
				return one.history, one.failed
			})
		}
	}
	return all, end, nil
}

// pause stops now and then, so that others get in between.
func pause() {
	if rand.IntN(8) == 0 {
		time.Sleep(rand.N(2 * time.Millisecond))
	}
}

// pauses is a hook that pauses before and after each command and pipeline: these are
// the steps that others get in between.
type pauses struct{}

func (pauses) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (pauses) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		pause()
		defer pause()
		return next(ctx, cmd)
	}
}

func (pauses) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		pause()
		defer pause()
		return next(ctx, cmds)
	}
}

// A caller reads and writes and remembers what it saw.
type caller struct {
	id      int
	subject subject
	db      *board
	most    int // keys that it reads at once
	own     int // which of the sets of keys of a time is its process's
	pace
	history []op
	failed  error
}

func (c *caller) run(begin time.Time, length time.Duration) {
	for c.failed == nil {
		// All subjects move on to new keys at about the same time, so that no history
		// of one key grows long.
		now := time.Since(begin)
		if now >= length {
			return
		}
		first := (int(now/c.epoch)*processes + c.own) * c.keys
		if now < 0 || first+c.keys > boardKeys {
			continue
		}
		key := first + rand.IntN(c.keys)
		switch n := rand.IntN(16 + c.writes); {
		case n < 8 && c.most > 1:
			c.read(first, rand.Perm(c.keys)[:2+rand.IntN(c.most-1)])
		case n < 16 || key == first && c.id != 0:
			c.read(key, []int{0})
		default:
			c.write(key)
		}
	}
}

// read notes each key's answer as an operation of that key, which began and ended with
// the batch.
func (c *caller) read(first int, offsets []int) {
	wanted := make([]int, len(offsets))
	for i, offset := range offsets {
		wanted[i] = first + offset
	}
	call := c.db.tick()
	versions, err := c.subject.read(wanted)
	end := c.db.tick()
	if err != nil {
		c.failed = err
		return
	}
	for i, key := range wanted {
		c.history = append(c.history, op{Client: int64(c.id), Key: int64(key), Value: versions[i], Call: call, Return: end})
	}
}

// write is a transaction and what has to follow. Set is for a writer who knows that
// its value is the newest, as the only writer of a key does.
func (c *caller) write(key int) {
	done := op{Client: int64(c.id), Key: int64(key), Write: true, Call: c.db.tick()}
	switch how := rand.IntN(6); {
	case how == 0 && key%c.keys == 0:
		done.Value = c.db.write(key)
		pause()
		c.failed = c.subject.set(key, done.Value)
	case how <= 3: // holds of several writers overlap
		c.failed = c.subject.write(key, func() { done.Value = c.db.write(key) })
	case how == 4:
		done.Value = c.db.write(key)
		pause()
		c.failed = c.subject.refresh(key)
	default:
		done.Value = c.db.write(key)
		pause()
		c.failed = c.subject.invalidate(key)
	}
	done.Return = c.db.tick()
	c.history = append(c.history, done)
}

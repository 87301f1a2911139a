package linear

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/mutexrebuild"
)

func TestMain(m *testing.M) {
	redistest.Main(m, redistest.Roles{"client": client, "member": member})
}

const (
	processes = 2
	groups    = 5 // in each process, with a client each
	callers   = 2 // of each group
	keys      = 8 // in use at a time; one of them is written by one caller only
	epoch     = 250 * time.Millisecond
	valueTTL  = 20 * time.Millisecond
)

// How long a cache waits for Redis: calm, so that a loaded machine is not taken for
// an outage, or where there are outages.
const (
	calm    = 5 * time.Second
	nervous = 100 * time.Millisecond
)

// record runs the clients for a while and returns what they did.
func record(t *testing.T, addr string, patience, length time.Duration, without string) (history []op) {
	t.Helper()
	return launch(t, "client", addr, newBoard(t), length, without, patience.String()).history(t)
}

// sabotage takes safeguards out of a client, and makes it pause between its steps.
// Only builds that have such points have it.
var sabotage func(without string)

// client is a process with several caches and their callers.
func client(p *redistest.Parent, args []string) error {
	a, err := readTask(args)
	if err != nil {
		return err
	}
	without := a.args[0]
	patience, err := time.ParseDuration(a.args[1])
	if err != nil {
		return err
	}
	if sabotage != nil {
		sabotage(without)
	}
	var all []worker
	for g := range groups {
		rdb := redis.NewClient(&redis.Options{Addr: a.addr})
		defer rdb.Close()
		group, err := mutexrebuild.New(rdb, "linear", versions, mutexrebuild.Events{Mark: pauseAtMark},
			mutexrebuild.Options{RedisTimeout: patience, ErrorHold: -1})
		if err != nil {
			return err
		}
		defer group.Close()
		for c := range callers {
			one := &caller{id: (a.process*groups+g)*callers + c, group: group, db: a.db}
			all = append(all, func(begin time.Time) ([]op, error) {
				one.run(begin, a.length)
				return one.history, one.failed
			})
		}
	}
	return a.work(p, all)
}

// pause stops now and then, so that others get in between.
func pause() {
	if rand.IntN(8) == 0 {
		time.Sleep(rand.N(2 * time.Millisecond))
	}
}

// A group calls these between its steps: before it asks Redis, after a load and
// before the publication, after what it found.
func pauseAtMark(string) any { pause(); return nil }

var versions = mutexrebuild.Format[int64]{
	Encode: func(_ string, v int64) ([]byte, time.Duration, error) {
		pause()
		return strconv.AppendInt(nil, v, 10), valueTTL, nil
	},
	Decode: func(_ string, data []byte) (int64, mutexrebuild.Condition) {
		pause()
		v, err := strconv.ParseInt(string(data), 10, 64)
		if err != nil {
			return 0, mutexrebuild.Unfit
		}
		return v, mutexrebuild.Fresh
	},
}

// A caller reads and writes and remembers what it saw.
type caller struct {
	id      int
	group   *mutexrebuild.Group[int64]
	db      *board
	history []op
	failed  error
}

func (c *caller) run(begin time.Time, length time.Duration) {
	for c.failed == nil {
		// All caches move on to new keys at about the same time, so that no history
		// of one key grows long.
		now := time.Since(begin)
		if now >= length {
			return
		}
		key := int(now/epoch)*keys + rand.IntN(keys)
		if now < 0 || key >= boardKeys {
			continue
		}
		done := op{Client: int64(c.id), Key: int64(key), Call: c.db.tick()}
		switch n := rand.IntN(20); {
		case n < 16 || key%keys == 0 && c.id != 0:
			done.Value, c.failed = c.read(key)
		default:
			done.Write = true
			done.Value, c.failed = c.write(key)
		}
		done.Return = c.db.tick()
		c.history = append(c.history, done)
	}
}

func (c *caller) read(key int) (int64, error) {
	result, err := c.group.Do(context.Background(), id(key), func(context.Context, bool) (int64, error) {
		pause()
		version := c.db.read(key)
		pause()
		return version, nil
	})
	return result.Value, err
}

// write is a transaction and what has to follow, which is repeated until it is
// confirmed: before that nothing is promised. Set is for a writer who knows that
// its value is the newest, as the only writer of a key does.
func (c *caller) write(key int) (version int64, err error) {
	ctx := context.Background()
	switch how := rand.IntN(4); {
	case how == 0 && key%keys == 0:
		version = c.db.write(key)
		pause()
		err = insist(func() error { _, err := c.group.Set(ctx, id(key), version); return err })
	case how == 1: // as cache.Write does it
		var end func(context.Context) error
		err = insist(func() (err error) { end, err = c.group.Hold(ctx, id(key)); return err })
		if err != nil {
			return 0, err
		}
		pause()
		version = c.db.write(key)
		pause()
		err = insist(func() error { return end(ctx) })
	default:
		version = c.db.write(key)
		pause()
		err = insist(func() error { return c.group.Invalidate(ctx, id(key)) })
	}
	return version, err
}

func id(key int) string { return fmt.Sprint(key) }

func insist(do func() error) (err error) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err = do(); err == nil {
			return nil
		}
	}
	return err
}

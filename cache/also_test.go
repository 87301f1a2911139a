package cache_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/mutexrebuild"
)

// closedNow fails the test if what is loaded of a key now is published. What a writer has expired is there.
func closedNow(r *rig, c *probe[int64, string], key int64) {
	r.Helper()
	expired := r.stored(key)
	if _, err := c.Get(r.ctx, key); err != nil && !errors.Is(err, cache.ErrNotFound) {
		r.Error(err)
	}
	if r.stored(key) != expired {
		r.Errorf("key %d is open to publication", key)
	}
}

// The key of an INSERT … RETURNING or an UPDATE … RETURNING is known in tx alone. Without
// Also, a reader who asks between the statement and the end of the Write publishes the old
// value, or that there is none, and it stays.
func TestKeysFoundInTheTransactionJoinItsWrite(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		c, source := written(r)
		other := open(r, source.source()) // another process
		other.gives(r, 1, "v1")
		c.gives404(r, 2)
		other.gives404(r, 2)
		err := cache.Write(r.ctx, func(ctx context.Context) error {
			if err := cache.Also(ctx, c.Changes(1, 2)); err != nil { // the statement has found 1 and made 2
				return err
			}
			for range 3 { // readers before the commit
				closedNow(r, c, 1)
				closedNow(r, other, 1)
				closedNow(r, other, 2)
			}
			source.put(1, "v2")
			source.put(2, "new")
			return nil
		})
		if err != nil {
			r.Fatal(err)
		}
		c.gives(r, 1, "v2")
		c.gives(r, 2, "new")
		c.comesFrom(r, 1, r.near()) // the keys are open again
		c.comesFrom(r, 2, r.near())
		if r.rdb != nil && !r.local { // those of another process follow by message
			other.gives(r, 1, "v2")
			other.gives(r, 2, "new")
		}
	})
}

// A repository's method with a Write of its own runs in the tx of a service's: the row of
// both is not committed before the outer one ends.
func TestTheKeysOfANestedWriteAreClosedToTheEndOfTheOutermost(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real"}}, func(r *rig) {
		source := newRows(r, 1, 2, 3, 4)
		c := open(r, source.source())
		err := c.Write(r.ctx, []int64{1}, func(ctx context.Context) error {
			err := c.Write(ctx, []int64{2}, func(ctx context.Context) error {
				if err := c.Write(ctx, []int64{3}, func(context.Context) error { return nil }); err != nil {
					return err
				}
				return cache.Also(ctx, c.Changes(4))
			})
			if err != nil {
				return err
			}
			for key := range int64(4) {
				closedNow(r, c, key+1)
				source.put(key+1, "v2")
			}
			return nil
		})
		if err != nil {
			r.Fatal(err)
		}
		for key := range int64(4) {
			c.gives(r, key+1, "v2")
			c.comesFrom(r, key+1, r.near())
		}
	})
}

// A Write that outlives the one around it invalidates its own keys, since nobody else will.
func TestAWriteThatOutlivesTheOneAroundItInvalidatesByItself(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real"}}, func(r *rig) {
		source := newRows(r, 1, 2)
		c := open(r, source.source())
		over, done := make(chan struct{}), make(chan error)
		err := c.Write(r.ctx, []int64{1}, func(ctx context.Context) error {
			begun := make(chan struct{})
			go func() {
				done <- c.Write(context.WithoutCancel(ctx), []int64{2}, func(context.Context) error {
					close(begun)
					<-over
					closedNow(r, c, 2)
					source.put(2, "v2")
					return nil
				})
			}()
			<-begun
			return nil
		})
		close(over)
		if err := errors.Join(err, <-done); err != nil {
			r.Fatal(err)
		}
		c.gives(r, 2, "v2")
		c.comesFrom(r, 2, r.near())
	})
}

func TestAlsoThatCannotJoinIsAnError(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		c, source := written(r)
		closed := open(r, source.source(), func(o *cache.Options) { o.Name = "closed" })
		_ = closed.Close()
		deaf := openOn(r, nil, source.source(), func(o *cache.Options) { o.Name, o.Filter = "deaf", brokenFilter{} })
		ended, cancel := context.WithCancel(r.ctx)
		cancel()
		var late context.Context
		for name, test := range map[string]struct {
			changes cache.Changes
			want    error
		}{
			"a closed cache":               {closed.Changes(1), cache.ErrClosed},
			"no cache":                     {cache.Changes{}, nil},
			"a filter that does not learn": {deaf.Changes(1), errBroken},
		} {
			var also error
			err := c.Write(r.ctx, []int64{1}, func(ctx context.Context) error {
				late = ctx
				also = cache.Also(ctx, c.Changes(2), test.changes)
				return also
			})
			if also == nil || test.want != nil && !errors.Is(also, test.want) || !errors.Is(err, also) || errors.Is(err, cache.ErrNotInvalidated) {
				r.Errorf("%s: Also gives %v and Write %v", name, also, err)
			}
		}
		err := c.Write(ended, []int64{1}, func(context.Context) error { r.Error("tx runs"); return nil })
		if !errors.Is(err, context.Canceled) {
			r.Errorf("a Write whose context has ended: %v", err)
		}
		if err := cache.Also(r.ctx, c.Changes(1)); err == nil {
			r.Error("Also outside of a Write gives no error")
		}
		if err := cache.Also(late, c.Changes(1)); err == nil || !strings.Contains(err.Error(), "ended") {
			r.Errorf("Also after its tx: %v", err)
		}
		c.gives(r, 1, "v1")
		c.comesFrom(r, 1, r.near()) // no hold is left behind
	})
}

func TestSeveralGoroutinesOfATransactionMayAddKeys(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "real"}}, func(r *rig) {
		source := newRows(r)
		c := open(r, source.source())
		const keys = 50
		err := cache.Write(r.ctx, func(ctx context.Context) error {
			var all sync.WaitGroup
			errs := make([]error, keys)
			for key := range int64(keys) {
				all.Go(func() { errs[key] = cache.Also(ctx, c.Changes(key)) })
			}
			all.Wait()
			for key := range int64(keys) {
				closedNow(r, c, key)
				source.put(key, "new")
			}
			return errors.Join(errs...)
		})
		if err != nil {
			r.Fatal(err)
		}
		for key := range int64(keys) {
			c.gives(r, key, "new")
			c.comesFrom(r, key, r.near())
		}
	})
}

// A Write without keys invalidates nothing: who forgets Also has to be told. Catches a Write
// that says nothing, and one that complains of a Write with keys or of one that has failed.
func TestAWriteThatNamesNoKeyIsLogged(t *testing.T) {
	const line = `level=WARN msg="levee: a Write has named no key`
	var mine, everybodys redistest.Log
	before := slog.Default()
	slog.SetDefault(everybodys.Logger())
	defer slog.SetDefault(before)
	cache.ForgetLoggedOwnerless()
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		c := open(r, newRows(r, 1).source(), logged(&mine))
		none := func(context.Context) error { return nil }
		also := func(ctx context.Context) error { return cache.Also(ctx, c.Changes(1)) }
		for name, write := range map[string]func() error{
			"by Changes": func() error { return cache.Write(r.ctx, none, c.Changes(1)) },
			"by Also":    func() error { return cache.Write(r.ctx, also) },
			"in a nested": func() error {
				return cache.Write(r.ctx, func(ctx context.Context) error { return cache.Write(ctx, also) })
			},
			"a failed one": func() error { _ = cache.Write(r.ctx, func(context.Context) error { return errBroken }); return nil },
			"nested, again": func() error {
				return cache.Write(r.ctx, func(ctx context.Context) error { return errors.Join(cache.Write(ctx, none), also(ctx)) })
			},
		} {
			if err := write(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			synctest.Wait() // a line is written by a goroutine of its own
			if text := mine.String() + everybodys.String(); strings.Contains(text, line) {
				t.Errorf("%s: it is logged:\n%s", name, text)
			}
		}
		for log, write := range map[*redistest.Log]func() error{
			&mine:       func() error { return c.Write(r.ctx, nil, none) },
			&everybodys: func() error { return cache.Write(r.ctx, none) },
		} {
			if err := write(); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if log.Count(line) != 1 {
				t.Errorf("it is not logged:\n%s", log)
			}
		}
	})
}

// Of the new ids of a counting filter about one in a hundred looks held. Passed over, it is
// denied as soon as the row is deleted whose positions it shares.
func TestACountingFilterCountsTheKeysOfAlso(t *testing.T) {
	r := newRig(t, cell{redis: "none"}, nil)
	filter := redistest.Must(bloom.New(bloom.Options{Capacity: 100, FalsePositiveRate: 0.2, Counting: true, Complete: true}))
	defer filter.Close()
	for id := range 100 {
		if err := filter.Add(r.ctx, fmt.Sprint(id)); err != nil {
			t.Fatal(err)
		}
	}
	var twin int64 = 100 // a key whose id looks held
	for ; !filter.MayContain(r.ctx, fmt.Sprint(twin)); twin++ {
	}
	source := newRows(r)
	c := openOn(r, nil, source.source(), func(o *cache.Options) { o.Filter = filter })
	err := cache.Write(r.ctx, func(ctx context.Context) error {
		source.put(twin, "new")
		return cache.Also(ctx, c.Changes(twin))
	})
	if err != nil {
		t.Fatal(err)
	}
	for id := range 100 {
		if err := filter.Remove(r.ctx, fmt.Sprint(id)); err != nil {
			t.Fatal(err)
		}
	}
	c.gives(r, twin, "new")
}

// A writer is a process that names key 1 inside a transaction, and is killed there.
func writer(p *redistest.Parent, args []string) error {
	rdb := redis.NewClient(&redis.Options{Addr: args[0]})
	defer rdb.Close()
	c, err := cache.New(rdb, func(context.Context, int64) (string, error) { return "", errBroken },
		cache.Options{Name: "test", RedisTimeout: 5 * time.Second, Rebuild: mutexrebuild.Options{Hold: 4 * time.Second}})
	if err != nil {
		return err
	}
	defer c.Close()
	return cache.Write(context.Background(), func(ctx context.Context) error {
		if err := cache.Also(ctx, c.Changes(1)); err != nil {
			return err
		}
		p.Say("held")
		_ = p.Next() // the commit is the parent's
		return errors.New("it was not killed")
	})
}

// A database may commit what its client asked for with its last breath. A reader who asks
// between the statement and that commit must not keep the old row, and when nobody comes
// to open the key, it opens by itself.
func TestAWriterThatDiesBetweenHoldAndCommitLeavesNothingOld(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for round, commits := range []bool{true, false, true} {
		r := onServer(t, server, cell{redis: "real"})
		source := newRows(r, 1)
		c := open(r, source.source())
		c.gives(r, 1, "v1")
		child := redistest.Child(t, "writer", server.Addr())
		child.Expect("held")
		for range 3 {
			closedNow(r, c, 1)
		}
		child.Kill()
		want := "v1"
		if commits {
			want = fmt.Sprint("v2 of round ", round)
			source.put(1, want)
		}
		r.eventually("what the database has is read", func() bool { got, err := c.Get(r.ctx, 1); return err == nil && got == want })
		c.comesFrom(r, 1, cache.TierRedis) // the key is open again
		c.gives(r, 1, want)
		_ = c.Invalidate(r.ctx, 1)
	}
}

package cache_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// "Committed, not yet everywhere" is one thing and a failed transaction another. A caller
// who tolerates ErrNotInvalidated must not tolerate a transaction that failed or never ran.
func TestErrNotInvalidatedFromWriteMeansCommitted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real", local: true})
	source := newRows(r, 1)
	var log redistest.Log
	c := open(r, source.source(), logged(&log))
	closed := open(r, source.source(), func(o *cache.Options) { o.Name = "closed" })
	_ = closed.Close()
	server.Kill()
	err := c.Write(r.ctx, []int64{1}, func(context.Context) error { return nil })
	if !errors.Is(err, cache.ErrNotInvalidated) || errors.Is(err, cache.ErrUnavailable) {
		r.Errorf("tx succeeded and Redis is away: %v", err)
	}
	failed := errors.New("deadlock detected")
	if err := c.Write(r.ctx, []int64{1}, func(context.Context) error { return failed }); err != failed {
		r.Errorf("tx failed and Redis is away: %v", err)
	}
	log.Await(t, "the invalidation after a failed write is not confirmed")

	unready := openOn(r, nil, cache.Source[string, string]{Load: func(context.Context, string) (string, error) { return "", nil }},
		func(o *cache.Options) { o.Filter = brokenFilter{} })
	ended, cancel := context.WithCancelCause(r.ctx)
	cancel(fmt.Errorf("%w: the job before", cache.ErrNotInvalidated))
	for name, test := range map[string]struct {
		ctx     context.Context
		changes cache.Changes
		want    error
	}{
		"a bad key":                    {r.ctx, unready.Changes(tooLong), cache.ErrInvalidKey},
		"a filter that does not learn": {r.ctx, unready.Changes("a"), errBroken},
		"a closed cache":               {r.ctx, closed.Changes(1), cache.ErrClosed},
		"a context that has ended":     {ended, c.Changes(1), context.Canceled},
	} {
		err := cache.Write(test.ctx, func(context.Context) error { r.Errorf("%s: tx runs", name); return nil }, test.changes)
		if !errors.Is(err, test.want) || errors.Is(err, cache.ErrNotInvalidated) || !strings.Contains(err.Error(), "the transaction has not run") {
			r.Errorf("%s: %v", name, err)
		}
	}
	server.Restart()
}

// An insert that was rolled back was answered as done, 204, and there was no row: Announce
// before the commit gave the error that said "committed" when it came out of the Write.
func TestAnInsertThatAnnounceRolledBackIsNotTakenForCommitted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real", local: true})
	exists := redistest.Must(bloom.New(bloom.Options{Capacity: 1000, Complete: true})) // it needs no Redis, and learns
	source := newRows(r)
	products := open(r, source.source(), func(o *cache.Options) { o.Name, o.Filter = "product", exists })
	slugs := open(r, cache.Source[string, int64]{Load: func(context.Context, string) (int64, error) { return 0, cache.ErrNotFound }},
		func(o *cache.Options) { o.Name = "slug" })
	categories := open(r, source.source(), func(o *cache.Options) { o.Name = "category" })
	insert := func(ctx context.Context, beforeCommit func(context.Context, int64) error) error {
		if err := beforeCommit(ctx, 7); err != nil {
			return err // rolled back
		}
		source.put(7, "lamp")
		return nil
	}
	server.Kill()
	err := cache.Write(r.ctx, func(ctx context.Context) error {
		return insert(ctx, func(ctx context.Context, id int64) error { return products.Announce(ctx, id) })
	}, slugs.Changes("lamp"), categories.Changes(3))
	if _, committed, _ := source.read(7); committed || err == nil || errors.Is(err, cache.ErrNotInvalidated) {
		r.Errorf("committed %v, and Write says %v", committed, err)
	}
	// The same with Also goes on, as Write does, and commits.
	err = cache.Write(r.ctx, func(ctx context.Context) error {
		return insert(ctx, func(ctx context.Context, id int64) error { return cache.Also(ctx, products.Changes(id)) })
	}, slugs.Changes("lamp"), categories.Changes(3))
	if _, committed, _ := source.read(7); !committed || !errors.Is(err, cache.ErrNotInvalidated) {
		r.Errorf("committed %v, and Write says %v", committed, err)
	}
	server.Restart()
}

// A codeError is what a transaction of a user's may return.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string { return fmt.Sprint(e.code, " ", e.err) }
func (e *codeError) Unwrap() error { return e.err }

// The error of tx keeps its meaning, and loses that of another call.
func TestTheErrorOfAnotherCallInTxIsNotThatOfTheWrite(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real", local: true})
	source := newRows(r, 1)
	c := open(r, source.source())
	other := open(r, source.source(), func(o *cache.Options) { o.Name = "other" })
	server.Kill()
	rolledBack := errors.New("rolled back")
	none := func(context.Context) error { return nil }
	inner := map[string]func(context.Context) error{
		"Invalidate": func(ctx context.Context) error { return other.Invalidate(ctx, 1) },
		"Set":        func(ctx context.Context) error { return other.Set(ctx, 1, "v1") },
		"Announce":   func(ctx context.Context) error { return other.Announce(ctx, 1) },
		"Clear":      func(ctx context.Context) error { return other.Clear(ctx) },
		"a Write beside": func(context.Context) error {
			return other.Write(r.ctx, []int64{1}, none) // not with the context of this one
		},
	}
	for name, call := range inner {
		for how, wrap := range map[string]func(error) error{
			"as it is": func(err error) error { return err },
			"by %w":    func(err error) error { return fmt.Errorf("insert: %w", err) },
			"joined":   func(err error) error { return errors.Join(rolledBack, err) },
			"a type": func(err error) error {
				return &codeError{40001, errors.Join(context.DeadlineExceeded, rolledBack, err)}
			},
		} {
			var inside error
			tx := func(ctx context.Context) error { inside = wrap(call(ctx)); return inside }
			for where, err := range map[string]error{
				"Write":        c.Write(r.ctx, []int64{1}, tx),
				"a nested one": c.Write(r.ctx, []int64{1}, func(ctx context.Context) error { return other.Write(ctx, []int64{2}, tx) }),
			} {
				if !errors.Is(inside, cache.ErrNotInvalidated) {
					t.Fatalf("%s gives %v in tx: this tests nothing", name, inside)
				}
				if err == nil || errors.Is(err, cache.ErrNotInvalidated) || !strings.Contains(err.Error(), "the transaction failed") {
					t.Errorf("%s in the tx of %s, %s: %v", name, where, how, err)
				}
				if errors.Is(inside, rolledBack) != errors.Is(err, rolledBack) {
					t.Errorf("%s in the tx of %s, %s: the sentinel of tx is lost: %v", name, where, how, err)
				}
				var typed *codeError
				if how == "a type" && (!errors.As(err, &typed) || typed.code != 40001 || !errors.Is(err, context.DeadlineExceeded)) {
					t.Errorf("%s in the tx of %s: the type of the error is lost: %v", name, where, err)
				}
			}
		}
	}
	server.Restart()
}

// The write has committed, so that the client has hung up is no reason to leave the old
// value everywhere. It was: "context canceled", and nothing done.
func TestAChangeIsInvalidatedThoughTheClientHasHungUp(t *testing.T) {
	for name, call := range map[string]func(context.Context, *probe[int64, string]) error{
		"Invalidate": func(ctx context.Context, c *probe[int64, string]) error { return c.Invalidate(ctx, 1) },
		"Set":        func(ctx context.Context, c *probe[int64, string]) error { return c.Set(ctx, 1, "v2") },
		"SetMany": func(ctx context.Context, c *probe[int64, string]) error {
			return c.SetMany(ctx, map[int64]string{1: "v2"})
		},
		"Clear":    func(ctx context.Context, c *probe[int64, string]) error { return c.Clear(ctx) },
		"Announce": func(ctx context.Context, c *probe[int64, string]) error { return c.Announce(ctx, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, everyCell(), func(r *rig) {
				source := newRows(r, 1)
				type key struct{}
				told := ""
				c := open(r, source.source(), func(o *cache.Options) {
					o.Hooks.Write = func(ctx context.Context, _ cache.Op) (context.Context, func(cache.Outcome)) {
						told, _ = ctx.Value(key{}).(string)
						return ctx, nil
					}
				})
				c.gives(r, 1, "v1")
				source.put(1, "v2")
				ctx, hangUp := context.WithCancel(context.WithValue(r.ctx, key{}, "trace"))
				hangUp()
				if err := call(ctx, c); err != nil {
					r.Error(err)
				}
				c.gives(r, 1, "v2")
				if told != "trace" {
					r.Error("the values of the context are lost")
				}
			})
		})
	}
}

package cache

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"reflect"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/follow"
	"github.com/levee-go/levee/cache/internal/keytext"
	"github.com/levee-go/levee/internal/fleet"
)

// Follow invalidates the keys of caches whose rows a feed says have changed, whoever has
// changed them, until ctx ends, whose error it returns. Call it in every process, on a
// goroutine of its own, with all routes of the feed: one process of the fleet reads, and
// when that one ends or dies, another goes on where it has stopped, within about four
// seconds.
//
//	go func() {
//		err := cache.Follow(ctx, feed, products.Route("product", nil), bySlug.Route("product", slugs))
//		if err != nil && ctx.Err() == nil {
//			slog.Error("changes of the database are not followed", "error", err)
//		}
//	}()
//
// A change is confirmed to the feed after Redis has confirmed its invalidation. From then
// on nobody reads what was there before it, with the promise of [Cache.Invalidate]. While
// Redis, or the filter of a cache, does not confirm, nothing more is read: the changes
// wait in the database. It does not wait for replicas of Redis: if fewer are there than
// Rebuild.WaitReplicas wants, what the master has done is confirmed. Inserted keys are added to the filter, which must be one that
// processes share; deleted ones stay in it until its next Rebuild.
//
// The position of the feed is stored in the Redis of the first route's cache. If Redis loses it, the
// process that follows goes on from its own memory. If there is none, as at the first time, and if the
// feed has lost the position, Follow begins in the present and Clears the caches: what was missed is not
// served. Their filters, which have missed inserted keys, abstain in all processes until they are
// rebuilt (bloom.Filter.Invalidate), which [Cache.KeepFilter] does within ten seconds. A filter of
// another make is to be filled anew; an Error in the log says so.
//
// Caches without Redis cannot be told by other processes. For them every process follows
// for itself, from the present on, and needs a feed of its own.
//
// Follow goes on through failures of feed and Redis, and logs them. It returns ErrClosed
// when a cache is closed, and another error at once if it cannot work: without feed or
// routes, with some caches that have a Redis and some that have none, and while
// this process follows a feed of that name already.
func Follow(ctx context.Context, from feed.Feed, routes ...Route) error {
	to := make([]follow.Route, len(routes))
	for i, r := range routes {
		to[i] = r.to
	}
	err := follow.Run(ctx, from, to)
	if errors.Is(err, follow.ErrClosed) {
		return ErrClosed
	}
	return err
}

// onMaster is nil for a change that the master of Redis has made and that lacks nothing but replicas: to
// wait for them would keep the log of the database for as long.
func (c *Cache[K, V]) onMaster(err error) error {
	if errors.Is(err, fleet.ErrTooFewReplicas) {
		c.log.Warn("changes are confirmed to the feed that too few replicas of redis know of", "error", err)
		return nil
	}
	return err
}

// Follow is the function [Follow] for one cache, whose key is the primary key of every
// table that the feed tells of.
func (c *Cache[K, V]) Follow(ctx context.Context, from feed.Feed) error {
	return Follow(ctx, from, c.Route("", nil))
}

// A Route says which keys of a cache a changed row touches. Make it with [Cache.Route] and
// pass it to [Follow].
type Route struct{ to follow.Route }

// Route says which keys of the cache a changed row of table touches. The name is as the
// feed gives it, "public.product" for example; "" is every table. keys is called with a row
// as it was before a change and as it is after, so that a row that moves from one key to
// another drops both. It may return none, or many, and is called by one goroutine at a time.
//
// With nil keys the key is the row's primary key, of one column, read as a K: an integer, a string, a type
// with UnmarshalText, or an array of as many bytes as the column has. With a Source.Key the column's text is
// the id. Follow refuses a K that is none of these, and stops at a row whose column is not one.
//
// An error or a panic of keys keeps [Follow] from going on: it tries the change again until
// the error is gone, and logs it. Return no keys for a row that does not matter. Rows of
// before hold only what the database logs of them, which may be the primary key alone.
func (c *Cache[K, V]) Route(table string, keys func(feed.Row) ([]K, error)) Route {
	if keys == nil {
		return Route{follow.Route{Cache: &c.fed, Table: table, Err: c.unreadable(table), IDs: func(row feed.Row, columns []string) ([]string, error) {
			id, err := c.primaryKey(row, columns)
			if err != nil || len(id) > c.o.MaxKey { // a key that is too long is in no cache
				return nil, err
			}
			return []string{id}, nil
		}}}
	}
	return Route{follow.Route{Cache: &c.fed, Table: table, IDs: func(row feed.Row, _ []string) ([]string, error) {
		all, err := keys(row)
		ids := make([]string, 0, len(all))
		for _, key := range all {
			id, invalid := c.id(key)
			if invalid == nil {
				ids = append(ids, id)
			}
		}
		return ids, err
	}}}
}

// unreadable says why a column cannot be read as a key of the cache: nil if it can.
func (c *Cache[K, V]) unreadable(table string) error {
	t := reflect.TypeFor[K]()
	composed := (t.Kind() == reflect.Struct || t.Kind() == reflect.Array) && !reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	if c.source.Key != nil || isBytes[K]() || keytext.Parser[K]() != nil && !composed {
		return nil
	}
	return fmt.Errorf("cache: keys of type %s are not made of a column: give the Route of table %q a func", t, table)
}

// isBytes reports whether K is an array of bytes, as of a UUID.
func isBytes[K comparable]() bool {
	t := reflect.TypeFor[K]()
	return t.Kind() == reflect.Array && t.Elem().Kind() == reflect.Uint8
}

// primaryKey is the id of a row's key. It is made by way of the key: the column may hold the bytes of what
// a program writes as text, or another text of the same number.
func (c *Cache[K, V]) primaryKey(row feed.Row, columns []string) (string, error) {
	if len(columns) != 1 {
		return "", fmt.Errorf("its primary key has %d columns, and only one of a single column is a key by itself: give Route a func", len(columns))
	}
	var key K
	if raw, ok := row[columns[0]].([]byte); ok && c.source.Key == nil && isBytes[K]() {
		if array := reflect.ValueOf(&key).Elem(); len(raw) == array.Len() {
			reflect.Copy(array, reflect.ValueOf(raw))
			return c.id(key)
		}
	}
	text, err := row.Text(columns[0])
	if err != nil {
		return "", err
	}
	if c.source.Key == nil && keytext.Parser[K]() == nil {
		return "", fmt.Errorf("column %q has %d bytes, and a key is a %s", columns[0], len(text), reflect.TypeFor[K]())
	}
	_, id, _, err := c.keyOf(text)
	if errors.Is(err, ErrInvalidKey) && len(text) > c.o.MaxKey {
		return text, nil
	}
	return id, err
}

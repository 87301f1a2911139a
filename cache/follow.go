package cache

import (
	"context"
	"errors"
	"fmt"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/follow"
)

// Follow invalidates the keys of rows that a feed reports as changed, whoever has changed them,
// until ctx ends, whose error it returns. Call it in every process, on a goroutine of its own,
// with all routes of the feed: one process of the fleet reads the feed, and when it ends or dies,
// another one continues from the same position, within about four seconds.
//
//	go func() {
//		err := cache.Follow(ctx, feed, products.Route("product", nil), bySlug.Route("product", slugs))
//		if err != nil && ctx.Err() == nil {
//			slog.Error("changes of the database are not followed", "error", err)
//		}
//	}()
//
// Follow confirms a change to the feed after Redis has confirmed its invalidation. From then on
// no reader gets an older value, as [Cache.Invalidate] guarantees. While Redis does not confirm,
// Follow reads no further: the changes wait in the database. Follow does not wait for replicas of
// Redis: if fewer than Rebuild.WaitReplicas acknowledge, the master's confirmation is enough.
//
// Follow adds inserted keys to the filter, which must be one that processes share; deleted keys
// stay in it until its next Rebuild. A filter that does not confirm is told again, whatever
// FilterBestEffort says, and holds up the feed for two seconds at most, until it has confirmed
// everything: the changes that follow are invalidated meanwhile. A change is not confirmed to the
// feed before the filters have confirmed it, so the database keeps its log; a process that takes
// over reads the same changes again. If more than 100,000 keys wait for it, the filter is told to
// abstain until its next rebuild instead. An outbox is meanwhile read every two seconds at
// the least, and gives no more rows while 100,000 of them are not confirmed.
//
// Nobody can follow while a Redis of the caches is away. So their filters let every key pass from when
// a process fails to follow, within about four seconds, until ten seconds after it has failed last: a row
// that another program has inserted is found, also if the filter's own Redis is well. What takes longer to
// follow after that is denied until it is followed.
//
// The position of the feed is stored in the Redis of the first route's cache. If Redis loses it,
// the process that follows continues from its own memory. If that has no position either, as at
// the first start, or if the feed has lost the position, Follow begins in the present and Clears
// the caches, so that no value is served whose change was missed. The caches' filters have missed
// inserted keys, so they abstain in all processes until they are rebuilt
// (bloom.Filter.Invalidate), which [Cache.KeepFilter] does within ten seconds. Fill a filter of
// another make anew yourself; an Error in the log says so.
//
// Caches without Redis cannot be notified by other processes. For them every process follows for
// itself, from the present on, and needs a feed of its own.
//
// Follow goes on through failures of the feed and of Redis, and logs them. It returns ErrClosed
// when a cache is closed. It returns another error at once if it cannot work: without a feed or
// routes, if some of the caches have a Redis and some have none, or if this process already
// follows a feed of that name.
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

// Follow calls the function [Follow] for this cache alone, whose key is the primary key of every
// table that the feed reports.
func (c *Cache[K, V]) Follow(ctx context.Context, from feed.Feed) error {
	return Follow(ctx, from, c.Route("", nil))
}

// A Route maps changed rows to keys of a cache, or to tags. Make it with [Cache.Route] or
// [Cache.RouteTags] and pass it to [Follow].
type Route struct{ to follow.Route }

// Route says which keys of the cache a changed row of table affects. table is the name that the
// feed uses, "public.product" for example; "" is every table. keys is called with the row before
// the change and with the row after it, so that a row that moves from one key to another drops
// both. It may return no keys, or many, and is called by one goroutine at a time.
//
// If keys is nil, the key is the row's primary key, of one column, read as a K: an integer, a
// string, a type with UnmarshalText, or an array of as many bytes as the column has. With a
// Source.Key the column's text is the id. Follow refuses a K of any other type, and stops at a
// row whose column does not fit K.
//
// An error or a panic of keys stops [Follow] at that change: it tries the change again until the
// error is gone, and logs it. Return no keys for a row that does not matter. The row before a
// change holds only the columns that the database logs, which may be the primary key alone.
func (c *Cache[K, V]) Route(table string, keys func(feed.Row) ([]K, error)) Route {
	if keys == nil {
		return Route{follow.Route{Cache: &c.fed, Table: table, Err: c.naming.unreadable(table), IDs: func(row feed.Row, columns []string) ([]string, error) {
			_, id, _, err := c.naming.ofRow(row, columns)
			if err != nil || len(id) > c.o.MaxKey { // no cache holds a key that is too long
				return nil, err
			}
			return []string{id}, nil
		}}}
	}
	return Route{follow.Route{Cache: &c.fed, Table: table, IDs: func(row feed.Row, _ []string) ([]string, error) {
		all, err := keys(row)
		ids := make([]string, 0, len(all))
		for _, key := range all {
			id, invalid := c.naming.id(key)
			if invalid == nil {
				ids = append(ids, id)
			}
		}
		return ids, err
	}}}
}

// RouteTags says which tags of the cache a changed row of table clears, as [Cache.ClearTags] does:
// a route from a row to all lists of its group, for example, whatever their keys are.
//
//	orders.RouteTags("public.orders", func(row feed.Row) ([]string, error) {
//		customer, err := row.Text("customer_id")
//		return []string{"customer:" + customer}, err
//	})
//
// tags is called as the function of [Cache.Route] is: with the row before the change, which needs
// the column in the database's log, and with the row after it; it may return none, and its error
// stops [Follow] at that change. Follow clears each tag once in a batch of the feed, and confirms
// the changes afterwards. A change of a whole table clears the cache.
//
// Redis stores a counter for each tag that was ever cleared, some 60 bytes, as ClearTags says.
// A null has no tags and stays for Options.NullTTL: let the loader of a list return an empty list.
// The filter of the cache learns no key of this route.
func (c *Cache[K, V]) RouteTags(table string, tags func(feed.Row) ([]string, error)) Route {
	route := follow.Route{Cache: &c.fed, Table: table, Tags: true}
	if tags == nil {
		route.Err = fmt.Errorf("cache: the route of table %q to tags of cache %q needs a function", table, c.o.Name)
		return Route{route}
	}
	route.IDs = func(row feed.Row, _ []string) ([]string, error) { return tags(row) }
	return Route{route}
}

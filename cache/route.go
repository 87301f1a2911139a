package cache

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/contain"
)

// A Route says which keys of a cache a changed row touches. Make it with [Cache.Route] and
// pass it to [Follow].
type Route struct {
	cache followed
	table string // "": every table
	ids   func(row feed.Row, key []string) ([]string, error)
	owns  bool // each row has one key, and no other row has the same: its end is the end of the key
}

// Route says which keys of the cache a changed row of table touches. The name is as the
// feed gives it, "public.product" for example; "" is every table. keys is called with a row
// as it was before a change and as it is after, so that a row that moves from one key to
// another drops both. It may return none, or many, and is called by one goroutine at a time.
//
// With nil keys the key is the row's primary key, of one column, whose text is
// the id: that of an integer or a string, unless Source.Key says otherwise. With a table
// as well, a counting Options.Filter forgets the keys of deleted rows: let nobody else
// Remove them.
//
// An error or a panic of keys keeps [Follow] from going on: it tries the change again until
// the error is gone, and logs it. Return no keys for a row that does not matter. Rows of
// before hold only what the database logs of them, which may be the primary key alone.
func (c *Cache[K, V]) Route(table string, keys func(feed.Row) ([]K, error)) Route {
	if keys == nil {
		return Route{cache: c, table: table, owns: table != "", ids: func(row feed.Row, columns []string) ([]string, error) {
			id, err := primaryKey(row, columns)
			if err != nil || len(id) > c.o.MaxKey { // a key that is too long is in no cache
				return nil, err
			}
			return []string{id}, nil
		}}
	}
	return Route{cache: c, table: table, ids: func(row feed.Row, _ []string) ([]string, error) {
		all, err := keys(row)
		ids := make([]string, 0, len(all))
		for _, key := range all {
			id, invalid := c.id(key)
			if invalid == nil {
				ids = append(ids, id)
			}
		}
		return ids, err
	}}
}

func primaryKey(row feed.Row, columns []string) (string, error) {
	if len(columns) != 1 {
		return "", fmt.Errorf("its primary key has %d columns, and only one of a single column is a key by itself: give Route a func", len(columns))
	}
	return row.Text(columns[0])
}

// name tells routes apart, in Redis too.
func (r Route) name() string { return r.cache.feeds().name + " " + strconv.Quote(r.table) }

// effects is what changes mean for one cache.
type effects struct {
	changes uint64
	cleared bool     // a table was truncated
	drop    []string // ids to invalidate, each once
	dropped map[string]bool
	born    []string // of these, ids of new rows, once for each
	present []string // and of rows that are there, new or not
	gone    []string // ids of deleted rows that were the only ones with that id
}

// effectsOf returns what a batch means for each cache. Its error names table and cache.
func effectsOf(routes []Route, batch feed.Batch) (map[followed]*effects, error) {
	all := map[followed]*effects{}
	var change feed.Change
	var route Route
	err := <-contain.Go(func() error { // the routes are the user's
		for _, change = range batch.Changes {
			for _, route = range routes {
				if route.table != "" && route.table != change.Table {
					continue
				}
				e := all[route.cache]
				if e == nil {
					e = &effects{dropped: map[string]bool{}}
					all[route.cache] = e
				}
				if err := e.add(route, change); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the keys of a row of table %q in cache %q: %w", change.Table, route.cache.feeds().name, err)
	}
	return all, nil
}

func (e *effects) add(r Route, change feed.Change) (err error) {
	e.changes++
	if change.Kind == feed.Truncated {
		e.cleared = true
		return nil
	}
	var before, after []string
	if change.Old != nil {
		if before, err = r.ids(change.Old, change.Key); err != nil {
			return err
		}
	}
	if change.New != nil {
		if after, err = r.ids(change.New, change.Key); err != nil {
			return err
		}
	}
	for _, id := range slices.Concat(before, after) {
		if !e.dropped[id] {
			e.dropped[id] = true
			e.drop = append(e.drop, id)
		}
	}
	// An Updated row without an Old has kept its key, which is no news for the filter,
	// unless the filter has missed the row's beginning.
	for _, id := range after {
		if change.Kind == feed.Inserted || change.Old != nil && !slices.Contains(before, id) {
			e.born = append(e.born, id)
		} else {
			e.present = append(e.present, id)
		}
	}
	for _, id := range before {
		if r.owns && !slices.Contains(after, id) {
			e.gone = append(e.gone, id)
		}
	}
	return nil
}

// followed is what Follow needs of a cache, whatever its types.
type followed interface {
	feeds() *feeds
	Clear(ctx context.Context) error
	// apply does what a batch means for the cache, but for what is gone.
	apply(ctx context.Context, e *effects) error
	// remove takes ids of deleted rows out of a counting filter.
	remove(ctx context.Context, ids []string)
}

const dropAtOnce = 512 // ids in one invalidation

func (c *Cache[K, V]) apply(ctx context.Context, e *effects) error {
	if e.cleared {
		if err := c.Clear(ctx); err != nil {
			return err
		}
	}
	for ids := range slices.Chunk(e.drop, dropAtOnce) {
		if err := c.invalidate(ctx, ids); err != nil {
			return err
		}
	}
	if c.o.Filter == nil {
		return nil
	}
	// A counting filter has to count each row, which Ensure does not: it passes over the
	// ids that look held. To count a row twice, if the change comes again or its writer
	// has counted it as well, leaves an id in the filter and denies none.
	if len(e.born) > 0 {
		if err := c.announce(ctx, e.born); err != nil {
			return err
		}
	}
	if len(e.present) > 0 {
		return c.ensure(ctx, e.present)
	}
	return nil
}

// remover is what a Filter has that may forget keys, as bloom.Filter does.
type remover interface {
	Remove(ctx context.Context, ids ...string) error
}

// counting returns the filter if it counts its keys: only such a one removes any, be it none.
func (c *Cache[K, V]) counting(ctx context.Context) (filter remover, ok bool) {
	filter, ok = c.o.Filter.(remover)
	return filter, ok && filter.Remove(ctx) == nil
}

func (c *Cache[K, V]) remove(ctx context.Context, ids []string) {
	filter, ok := c.counting(ctx)
	if !ok {
		return
	}
	if err := filter.Remove(ctx, ids...); err != nil {
		c.log.Warn("the filter has not forgotten deleted keys, which pass it until its next Rebuild", "error", err)
	}
}

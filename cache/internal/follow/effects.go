package follow

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/keys"
)

// A Route maps changed rows to ids of a cache.
type Route struct {
	Cache *Cache
	Table string // "": every table
	Err   error  // why Run cannot follow it
	IDs   func(row feed.Row, key []string) ([]string, error)
	Tags  bool // IDs returns tags
}

// name identifies a route in this process and in Redis.
func (r Route) name() string {
	name := keys.Under(r.Cache.Prefix, r.Cache.Name) + " " + strconv.Quote(r.Table)
	if r.Tags {
		name += " tags"
	}
	return name
}

// effects are what changes mean for one cache.
type effects struct {
	changes uint64
	cleared bool            // a table was truncated, or its changed rows are not known
	drop    []string        // ids to invalidate, each once
	present []string        // those of drop whose rows exist, new or not, each once
	known   map[string]bool // of the ids of drop: whether they are in present
	tags    []string        // to clear, some of them more than once
}

// effectsOf returns the effects of a batch on each cache. Its error names table and cache.
func effectsOf(routes []Route, batch feed.Batch) (map[*Cache]*effects, error) {
	all := map[*Cache]*effects{}
	var change feed.Change
	var route Route
	err := <-contain.Go(func() error { // routes call functions of the user's
		for _, change = range batch.Changes {
			for _, route = range routes {
				if route.Table != "" && route.Table != change.Table {
					continue
				}
				e := all[route.Cache]
				if e == nil {
					e = &effects{known: map[string]bool{}}
					all[route.Cache] = e
				}
				if err := e.add(route, change); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the keys of a row of table %q in cache %q: %w", change.Table, route.Cache.Name, err)
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
		if before, err = r.IDs(change.Old, change.Key); err != nil {
			return err
		}
	}
	if change.New != nil {
		if after, err = r.IDs(change.New, change.Key); err != nil {
			return err
		}
	}
	if r.Tags {
		e.tags = append(append(e.tags, before...), after...)
		return nil
	}
	for i, id := range slices.Concat(before, after) {
		present, there := e.known[id]
		if !there {
			e.drop = append(e.drop, id)
		}
		if i >= len(before) && !present {
			e.present = append(e.present, id)
			present = true
		}
		e.known[id] = present
	}
	return nil
}

const dropAtOnce = 512 // ids in one invalidation, or tags in one clear

// applyTo applies the effects of a batch to a cache, but for its filter.
func (f *follower) applyTo(ctx context.Context, c *Cache, e *effects) error {
	if e.cleared {
		if err := f.forget(ctx, c); err != nil {
			return err
		}
	}
	for ids := range slices.Chunk(e.drop, dropAtOnce) {
		if err := c.Invalidate(ctx, ids); err != nil {
			return err
		}
	}
	slices.Sort(e.tags)
	for tags := range slices.Chunk(slices.Compact(e.tags), dropAtOnce) {
		if err := c.ClearTags(ctx, tags); err != nil {
			return err
		}
	}
	return nil
}

// forget clears a cache, because any of its rows may have changed. Rows may also be new, so the
// filter is to abstain.
func (f *follower) forget(ctx context.Context, c *Cache) error {
	f.debts.owe(c, f.batch, nil, true)
	return c.Clear(ctx)
}

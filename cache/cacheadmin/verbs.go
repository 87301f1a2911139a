package cacheadmin

import (
	"context"
	"net/http"
	"time"

	"github.com/levee-go/levee/cache/internal/look"
)

const (
	maxKeys = 100     // keys or tags in a request
	maxBody = 1 << 20 // bytes
	page    = "page"  // the verb of a request without one
	inspect = "inspect"
	key     = "key" // parameters
	tag     = "tag"

	filter        = "filter"
	rebuildFilter = "rebuildfilter"
)

// A verb is an action that a request names.
type verb struct {
	takes  string // the parameter that it needs: "key", "tag" or none
	writes bool   // it needs a POST
	do     func(ctx context.Context, c Cache, what []string, a *answer) error
}

var verbs = map[string]verb{
	page: {},
	inspect: {takes: key, do: func(ctx context.Context, c Cache, keys []string, a *answer) error {
		for _, key := range keys {
			seen, err := c.Inside().Inspect(ctx, key)
			if err != nil {
				return err
			}
			a.Found = append(a.Found, look.Of(seen, nil, c.Stats(), time.Now()))
		}
		return nil
	}},
	"invalidate": {takes: key, writes: true, do: func(ctx context.Context, c Cache, keys []string, _ *answer) error {
		return c.Inside().Invalidate(ctx, keys)
	}},
	"expire": {takes: key, writes: true, do: func(ctx context.Context, c Cache, keys []string, _ *answer) error {
		return c.Inside().Expire(ctx, keys)
	}},
	"refresh": {takes: key, writes: true, do: func(ctx context.Context, c Cache, keys []string, _ *answer) error {
		return c.Inside().Refresh(ctx, keys)
	}},
	"announce": {takes: key, writes: true, do: func(ctx context.Context, c Cache, keys []string, _ *answer) error {
		return c.Inside().Announce(ctx, keys)
	}},
	"clear": {writes: true, do: func(ctx context.Context, c Cache, _ []string, _ *answer) error {
		return c.Clear(ctx)
	}},
	"cleartags": {takes: tag, writes: true, do: func(ctx context.Context, c Cache, tags []string, _ *answer) error {
		return c.ClearTags(ctx, tags...)
	}},
	filter: {do: func(_ context.Context, c Cache, _ []string, a *answer) error {
		s, ok := c.(*scanned)
		if !ok {
			return errNoScan
		}
		a.Rebuild = s.progress()
		return nil
	}},
	rebuildFilter: {writes: true, do: func(_ context.Context, c Cache, _ []string, a *answer) error {
		s, ok := c.(*scanned)
		if !ok {
			return errNoScan
		}
		err := s.start(a.Who, a.log)
		a.Rebuild = s.progress()
		if err == nil {
			a.status = http.StatusAccepted
		}
		return err
	}},
}

package cache_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cachedebug"
)

// A key is looked up by its text, whatever type it has.
func TestInspectTurnsTextBackIntoAKey(t *testing.T) {
	r := newRig(t, cell{redis: "none", local: true}, nil)
	inspects(r, shortID(7), map[string]string{"7": "7", "007": "7", "32768": "", "seven": ""})
	type slug string
	inspects(r, slug("a"), map[string]string{"a": "a"})
	inspects(r, netip.MustParseAddr("::1"), map[string]string{"::1": "::1", "0:0:0:0:0:0:0:1": "::1", "localhost": ""})

	pairs := open(r, cache.Source[pair, string]{
		Load: func(context.Context, pair) (string, error) { return "v", nil },
		Key:  func(pair) string { return "pair" },
	})
	if found, err := cachedebug.Inspect(r.ctx, pairs, "pair"); err != nil || found.ID != "pair" || !found.LocalUnknown {
		t.Errorf("of a key whose text cannot be turned back: %+v, %v", found, err)
	}
}

// inspects reads key, and looks it up by texts: each finds it under an id, or is no key
// if that is "".
func inspects[K comparable](r *rig, key K, texts map[string]string) {
	r.Helper()
	c := open(r, cache.Source[K, string]{Load: func(context.Context, K) (string, error) { return "v", nil }})
	if _, err := c.Get(r.ctx, key); err != nil {
		r.Fatal(err)
	}
	for text, id := range texts {
		found, err := cachedebug.Inspect(r.ctx, c, text)
		switch {
		case id == "" && !errors.Is(err, cache.ErrInvalidKey):
			r.Errorf("%q: %+v, %v", text, found, err)
		case id != "" && (err != nil || found.ID != id || found.Local == nil || found.Local.State != "fresh" || found.Local.Value != "v"):
			r.Errorf("%q: %+v, %v", text, found, err)
		}
	}
}

// The states of a value as Inspect tells them are those in which it answers.
func TestInspectFollowsTheLifeOfAValue(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "mini"}, {redis: "none", local: true}}, func(r *rig) {
		c := open(r, cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) { return "v", nil }},
			ttl(time.Minute), func(o *cache.Options) {
				o.Jitter, o.StaleWhileRevalidate, o.StaleIfError, o.Local.TTL = -1, time.Minute, time.Hour, 24*time.Hour
			})
		if _, err := c.Get(r.ctx, 1); err != nil {
			r.Fatal(err)
		}
		for _, want := range []string{"fresh", "stale", "fallback"} {
			found, err := cachedebug.Inspect(r.ctx, c, "1")
			if err != nil {
				r.Fatal(err)
			}
			there := found.Redis
			if r.redis == "none" {
				there = found.Local
			}
			if there == nil || there.State != want || there.Value != "v" {
				r.Errorf("%s: %+v", want, there)
			}
			if r.redis == "mini" && r.local && want == "fresh" && (found.Local == nil || found.Local.Left <= 0 || found.Local.TTL <= 0) {
				r.Errorf("local: %+v", found.Local)
			}
			time.Sleep(time.Minute)
		}
		if _, err := c.Get(r.ctx, 1); err != nil {
			r.Fatal(err)
		}
		if err := c.Clear(r.ctx); err != nil {
			r.Fatal(err)
		}
		found, err := cachedebug.Inspect(r.ctx, c, "1")
		if err != nil || found.Redis != nil && found.Redis.State != "dead" || found.Local != nil && found.Local.State != "dead" {
			r.Errorf("after Clear: %+v, %+v, %v", found.Local, found.Redis, err)
		}
	})
}

func TestTopKeysOfACacheAreIDs(t *testing.T) {
	r := newRig(t, cell{redis: "none", local: true}, nil)
	c := open(r, cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) { return "v", nil }},
		func(o *cache.Options) { o.Local.HotKeys = 10 })
	for range 10_000 {
		_, _ = c.Get(r.ctx, 42)
	}
	if top := cachedebug.TopKeys(c, 5); len(top) != 1 || top[0].ID != "42" || top[0].Share != 1 {
		t.Errorf("got %+v", top)
	}
}

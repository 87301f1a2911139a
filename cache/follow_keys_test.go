package cache_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// followsKey has a cache of one key follow a table whose key column holds column.
func followsKey[K comparable](r *rig, name string, key K, column any) {
	r.Run(name, func(t *testing.T) {
		version := "v1"
		db := newLedger()
		c := open(&rig{T: t, cell: r.cell, ctx: r.ctx, client: r.client, rdb: r.rdb}, cache.Source[K, string]{
			Load: func(context.Context, K) (string, error) { return version, nil },
		}, func(o *cache.Options) { o.Name = strings.Map(letters, name) })
		db.name = strings.Map(letters, name)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- cache.Follow(ctx, db, c.Route("product", nil)) }()
		defer func() { stop(); <-done }()
		r.eventually("the feed is followed", func() bool { return c.Stats().Follow.Following })
		for range 2 {
			if _, err := c.Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		version = "v2"
		db.confirms(r, db.commit(feed.Change{Kind: feed.Deleted, Table: "product", Old: feed.Row{"id": column}, Key: []string{"id"}}))
		if v, err := c.Get(t.Context(), key); v != "v2" || err != nil {
			t.Errorf("Get(%v) is %q, %v, after a change of the row", key, v, err)
		}
	})
}

func letters(r rune) rune {
	if r >= 'a' && r <= 'z' {
		return r
	}
	return -1
}

type (
	shortID int16
	pair    struct{ A, B int64 }
)

// With no func a route makes the key of the column, whatever the column's type is.
//
// Defect: the column's text is taken for the id, and another id is invalidated.
func TestARouteWithoutAFuncMakesTheKeyOfTheColumn(t *testing.T) {
	t.Parallel()
	r := onServer(t, redistest.Start(t), cell{redis: "real"})
	id := [16]byte{0x12, 0x3e, 0x45, 0x67, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255}
	followsKey(r, "array of bytes", id, id[:])
	followsKey(r, "integer", int64(7), int64(7))
	followsKey(r, "small", shortID(-7), int64(-7))
	followsKey(r, "zeros", int64(7), "007")
	followsKey(r, "decimal as text", "7.50", "7.50")
	followsKey(r, "string", "a b", "a b")
	followsKey(r, "string of bytes", "a b", []byte("a b"))
	followsKey(r, "number as text", "7", int64(7))
	followsKey(r, "address", netip.MustParseAddr("::ffff:10.0.0.1"), "::ffff:10.0.0.1")
	followsKey(r, "address in capitals", netip.MustParseAddr("fe80::a"), "FE80:0::A")
}

// A key that no column holds is refused before anything is followed.
func TestARouteWithoutAFuncIsRefusedForKeysOfNoColumn(t *testing.T) {
	t.Parallel()
	r := onServer(t, redistest.Start(t), cell{redis: "real"})
	c := open(r, cache.Source[pair, string]{Load: func(context.Context, pair) (string, error) { return "v1", nil }})
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	err := cache.Follow(ctx, newLedger(), c.Route("product", nil))
	if err == nil || !strings.Contains(err.Error(), "pair are not made of a column") {
		t.Error(err)
	}
}

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/dgraph-io/ristretto/v2"
	rediscache "github.com/go-redis/cache/v9"
	"github.com/maypok86/otter/v2"
	"github.com/viccon/sturdyc"

	"github.com/levee-go/levee/localcache"
)

// A plain is a contender's tier in the process by itself.
type plain[K comparable] struct {
	has   func(K) bool
	set   func(K, int) // stores the row of an id
	close func()
}

// A shopRow has 200 bytes: 88 of its own and 112 in its strings.
type shopRow struct {
	ID, Price, Stock               int64
	Name, Brand, Category, Comment string
}

func shopRowOf(id int) shopRow {
	text := strings.Repeat("x", 112) // the strings are parts of it
	return shopRow{int64(id), 4999, 7, text[:16], text[16:32], text[32:48], text[48:]}
}

// openPlain opens a contender's tier: with a budget of so many bytes levee, with room for so many entries the others.
func openPlain[K int64 | string](contender string, room int64) (plain[K], error) {
	switch contender {
	case "levee", "levee as it is":
		c, err := localcache.New[K, shopRow](localcache.Options{MaxBytes: room, TTL: 1000 * time.Hour})
		return plain[K]{
			func(key K) bool { _, ok := c.Get(key); return ok },
			func(key K, id int) {
				_, _ = c.Fill(key, func() (shopRow, int, error) { return shopRowOf(id), 112, nil }) // as a read does
			},
			c.Close,
		}, err
	case "ristretto":
		c, err := ristretto.NewCache(&ristretto.Config[K, *shopRow]{
			NumCounters: 10 * room, MaxCost: room, BufferItems: 64, IgnoreInternalCost: true,
		})
		return plain[K]{
			func(key K) bool { _, ok := c.Get(key); return ok },
			func(key K, id int) { r := shopRowOf(id); c.Set(key, &r, 1) },
			c.Close,
		}, err
	case "otter":
		c, err := otter.New(&otter.Options[K, shopRow]{MaximumSize: int(room)})
		return plain[K]{
			func(key K) bool { _, ok := c.GetIfPresent(key); return ok },
			func(key K, id int) { c.Set(key, shopRowOf(id)) },
			func() { c.StopAllGoroutines() },
		}, err
	case "sturdyc":
		c := sturdyc.New[shopRow](int(room), 10, 1000*time.Hour, 10, sturdyc.WithNoContinuousEvictions())
		return plain[K]{
			func(key K) bool { _, ok := c.Get(any(key).(string)); return ok },
			func(key K, id int) { c.Set(any(key).(string), shopRowOf(id)) },
			func() {},
		}, nil
	case "go-redis/cache":
		c := rediscache.NewTinyLFU(int(room), 1000*time.Hour)
		return plain[K]{
			func(key K) bool { _, ok := c.Get(any(key).(string)); return ok },
			func(key K, _ int) { c.Set(any(key).(string), make([]byte, 200)) },
			func() {},
		}, nil
	}
	return plain[K]{}, fmt.Errorf("there is no contender %q", contender)
}

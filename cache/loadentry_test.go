package cache_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
)

// GetMany loads by LoadEntry where there is no LoadMany. Catches a source with LoadEntry alone that loads
// no batch, and a LoadEntry that takes the place of LoadMany.
func TestLoadEntryAloneLoadsBatches(t *testing.T) {
	inCells(t, append(entryCells, cell{redis: "none", local: true}), func(r *rig) {
		keys := make([]int64, 100)
		for i := range keys {
			keys[i] = int64(i)
		}
		p := &pages{number: 1}
		c := open(r, p.source())
		if got, err := c.GetMany(r.ctx, keys); err != nil || len(got) != 100 || got[7] != "page 1" || len(p.loads()) != 100 {
			r.Errorf("got %d values, %v, with %d loads", len(got), err, len(p.loads()))
		}
		calls, source := 0, p.source()
		source.LoadMany = func(_ context.Context, keys []int64) (map[int64]string, error) {
			calls++
			values := map[int64]string{}
			for _, key := range keys {
				values[key] = "of many"
			}
			return values, nil
		}
		both := open(r, source, func(o *cache.Options) { o.Name = "both" })
		if got, err := both.GetMany(r.ctx, keys); err != nil || len(got) != 100 || got[7] != "of many" || calls != 1 {
			r.Errorf("with LoadMany: got %d values, %v, with %d calls", len(got), err, calls)
		}
		both.gives(r, 1000, "page 1")
	})
}

// A Version of up to 64 bytes is stored, also for a value that has changed. A longer one is not. Catches
// a version that is cut: it would pass for another.
func TestAVersionOfUpToSixtyFourBytesIsStored(t *testing.T) {
	for length, kept := range map[int]bool{0: false, 1: true, 64: true, 65: false, 1000: false} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			inCells(t, entryCells, func(r *rig) {
				version, given := strings.Repeat("v", length), []string{}
				c := open(r, cache.Source[int64, string]{LoadEntry: func(_ context.Context, _ int64, e *cache.Entry[string]) (string, error) {
					given = append(given, e.Version)
					e.Version = version
					return "page", nil
				}}, fallbackAfterASecond)
				other := open(r, cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) { return "", errBroken }}, fallbackAfterASecond)
				for range 2 {
					c.gives(r, 1, "page")
					other.gives(r, 1, "page") // from Redis, whatever the version
					time.Sleep(3 * time.Second)
				}
				want := ""
				if kept {
					want = version
				}
				if len(given) != 2 || given[1] != want {
					r.Errorf("the loads were given %q, want the second to get %d bytes", given, len(want))
				}
			})
		})
	}
}

package cache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

const failAlike = "loads of different keys fail alike"

// A driver's own error for an absent row counts as a failure until IsNotFound knows it,
// and then a scraper opens the breaker. Nobody would guess why, so the log asks.
func TestAForgottenIsNotFoundIsToldInTheLog(t *testing.T) {
	noDocument := func(int64) error { return errors.New("mongo: no documents in result") }
	for name, test := range map[string]struct {
		fails func(key int64) error
		keys  func(i int64) int64
		told  bool
	}{
		"one error from different keys":      {noDocument, func(i int64) int64 { return i }, true},
		"one error from one key":             {noDocument, func(int64) int64 { return 1 }, false},
		"errors that differ from each other": {func(key int64) error { return fmt.Errorf("row %d is broken", key) }, func(i int64) int64 { return i }, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{}, func(r *rig, _ *redistest.MiniServer) {
				var log redistest.Log
				c := open(r, cache.Source[int64, string]{Load: func(_ context.Context, key int64) (string, error) { return "", test.fails(key) }}, logged(&log), unheld)
				for i := range int64(15) {
					if _, err := c.Get(r.ctx, test.keys(i)); err == nil {
						r.Error("a load that failed has a value")
					}
				}
				synctest.Wait() // a log is written on a goroutine of its own
				if told := log.Count(failAlike) > 0; told != test.told {
					r.Errorf("told: %v\n%s", told, &log)
				}
			})
		})
	}
}

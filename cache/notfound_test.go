package cache_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

const failAlike = "loads of different keys fail alike"

// A driver's own error for an absent row counts as a failure until IsNotFound knows it,
// and then a scraper opens the breaker. Nobody would guess why, so the log asks. A source
// that cannot be reached fails for all keys alike too: that question would send whoever
// reads it at night the wrong way.
func TestAForgottenIsNotFoundIsToldInTheLog(t *testing.T) {
	refused := func(int64) error {
		return fmt.Errorf("connect: %w", &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)})
	}
	noDocument := func(int64) error { return errors.New("mongo: no documents in result") }
	for name, test := range map[string]struct {
		fails func(key int64) error
		keys  func(i int64) int64
		told  bool
	}{
		"one error from different keys":      {noDocument, func(i int64) int64 { return i }, true},
		"one error from one key":             {noDocument, func(int64) int64 { return 1 }, false},
		"the source refuses connections":     {refused, func(i int64) int64 { return i }, false},
		"the source has hung up":             {func(int64) error { return fmt.Errorf("query: %w", io.ErrUnexpectedEOF) }, func(i int64) int64 { return i }, false},
		"the driver's connection is gone":    {func(int64) error { return driver.ErrBadConn }, func(i int64) int64 { return i }, false},
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

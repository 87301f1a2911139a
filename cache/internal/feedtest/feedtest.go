// Package feedtest contains what the tests of all feeds share: a follower of a stream, and checks of
// the changes that it reads.
package feedtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/cache/feed"
)

// A Follower reads a stream as cache.Follow does.
type Follower struct {
	feed.Stream
	At feed.Position // position of the last batch that had one

	t    testing.TB
	once sync.Once
}

// Open opens a stream, which is closed at the end of the test at the latest.
func Open(t testing.TB, f feed.Feed, from feed.Position) *Follower {
	t.Helper()
	s, err := f.Open(Soon(t), from)
	if err != nil {
		t.Fatal(err)
	}
	w := &Follower{t: t, Stream: s, At: from}
	t.Cleanup(w.End)
	return w
}

// End closes the stream. It may be called again.
func (w *Follower) End() {
	w.once.Do(func() {
		if err := w.Close(); err != nil {
			w.t.Error(err)
		}
	})
}

// Changes returns at least the next n changes, and all further ones of their transaction.
func (w *Follower) Changes(n int) (changes []feed.Change) {
	w.t.Helper()
	ctx := Soon(w.t)
	for ended := false; len(changes) < n || !ended; {
		b, err := w.Next(ctx)
		if err != nil {
			w.t.Fatalf("after %d of %d changes: %v", len(changes), n, err)
		}
		changes = append(changes, b.Changes...)
		if ended = b.Position != (feed.Position{}); ended {
			if b.Position.Order < w.At.Order {
				w.t.Errorf("position %v after %v", b.Position, w.At)
			}
			w.At = b.Position
		}
	}
	return changes
}

// ConfirmAll confirms all changes that were read.
func (w *Follower) ConfirmAll() {
	w.t.Helper()
	if err := w.Confirm(w.t.Context(), w.At); err != nil {
		w.t.Fatal(err)
	}
}

// Soon returns a context that ends when a test has waited long enough, after 30 s.
func Soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// Summary formats the kinds and rows of changes.
func Summary(changes []feed.Change) string {
	var b strings.Builder
	show := func(r feed.Row) string {
		if r == nil {
			return "<nil>"
		}
		return fmt.Sprint(r)
	}
	for _, c := range changes {
		fmt.Fprintf(&b, "%d %s %s; ", c.Kind, show(c.Old), show(c.New))
	}
	return b.String()
}

// WantError fails unless the text of err contains all parts. err must not match ErrPositionLost,
// which makes a follower clear the caches.
func WantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one of %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not have %q", err, part)
		}
	}
	if errors.Is(err, feed.ErrPositionLost) {
		t.Errorf("%q makes its follower clear the caches", err)
	}
}

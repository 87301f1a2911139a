package feedtest

import (
	"errors"
	"testing"

	"github.com/levee-go/levee/cache/feed"
)

// BeginsAfterAPosition opens a feed of an empty table again at a position: it reports the changes
// after the position, even if they were reported before. insert commits the row with an id. The
// returned stream is open and has confirmed all changes.
func BeginsAfterAPosition(t *testing.T, f feed.Feed, insert func(id int)) (feed.Position, *Follower) {
	t.Helper()
	insert(1)
	w := Open(t, f, feed.Position{})
	insert(2)
	w.Changes(1)
	first := w.At
	w.ConfirmAll()
	insert(3) // is told and not confirmed
	w.Changes(1)
	w.End()
	insert(4)
	w = Open(t, f, first)
	if got, want := Summary(w.Changes(2)), "1 <nil> map[id:3]; 1 <nil> map[id:4]; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	w.ConfirmAll()
	return first, w
}

// Lost checks that a feed cannot continue from a position: Open, or the stream that it returns,
// says so.
func Lost(t *testing.T, f feed.Feed, what string, p feed.Position) {
	t.Helper()
	ctx := Soon(t)
	s, err := f.Open(ctx, p)
	for opened := err == nil; opened && err == nil; {
		if _, err = s.Next(ctx); err != nil {
			_ = s.Close()
		}
	}
	if !errors.Is(err, feed.ErrPositionLost) {
		t.Errorf("%s: %v", what, err)
	}
}

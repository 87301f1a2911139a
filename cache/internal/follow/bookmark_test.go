package follow

import (
	"errors"
	"testing"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// Defect: a follower that stood still for longer than its lease moves the position back
// when it goes on; or a call of its own that was held up on its way does.
func TestAPausedFollowerCannotMoveThePositionBack(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	text := func() string { return rdb.HGet(t.Context(), keys.Feed("shop"), "p").Val() }
	old, next := newBookmarks(rdb, "", "shop"), newBookmarks(rdb, "", "shop")
	if at, err := old.claim(t.Context(), 7); err != nil || at.position != (feed.Position{}) {
		t.Fatal(at, err)
	}
	if err := errors.Join(old.keep(t.Context(), bookmark{position: feed.Position{Text: "a", Order: 1}}), old.keep(t.Context(), bookmark{position: feed.Position{Text: "b", Order: 2}})); err != nil {
		t.Fatal(err)
	}
	old.calls -= 2 // as if the first keep had been held up
	if err := old.keep(t.Context(), bookmark{position: feed.Position{Text: "a", Order: 1}}); err == nil || text() != "b" {
		t.Errorf("a late call has its way: %v, %q", err, text())
	}
	if at, err := next.claim(t.Context(), 8); err != nil || at.position != (feed.Position{Text: "b", Order: 2}) {
		t.Errorf("got %v, %v", at, err)
	}
	for range 3 {
		if err := old.keep(t.Context(), bookmark{position: feed.Position{Text: "c", Order: 3}}); err == nil || text() != "b" {
			t.Errorf("a follower that was overtaken has its way: %v, %q", err, text())
		}
	}
	if _, err := old.claim(t.Context(), 7); err == nil {
		t.Error("a follower that was overtaken has claimed the position")
	}
	if err := next.keep(t.Context(), bookmark{position: feed.Position{Text: "d", Order: 4}}); err != nil || text() != "d" {
		t.Errorf("got %v, %q", err, text())
	}
}

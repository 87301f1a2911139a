package cache

import (
	"context"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/logonce"
)

// Bookmarks are those of a follower, for a test of what keeps followers apart.
type Bookmarks struct{ kept *bookmarks }

func NewBookmarks(rdb redis.UniversalClient, feed string) Bookmarks {
	return Bookmarks{newBookmarks(rdb, feed)}
}

func (b Bookmarks) Claim(ctx context.Context, fence int64) (feed.Position, error) {
	at, err := b.kept.claim(ctx, fence)
	return at.position, err
}

func (b Bookmarks) Keep(ctx context.Context, text string, order uint64) error {
	return b.kept.keep(ctx, bookmark{position: feed.Position{Text: text, Order: order}})
}

// CallsAgain has the next call carry a number that an earlier one had.
func (b Bookmarks) CallsAgain() { b.kept.calls -= 2 }

// ForgetLoggedOwnerless has Writes without a cache logged at once, and not a minute later.
func ForgetLoggedOwnerless() { ownerless = logonce.New(slog.Default(), "levee: ") }

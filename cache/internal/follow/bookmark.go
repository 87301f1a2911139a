package follow

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
)

// A bookmark records how far a feed has been followed.
type bookmark struct {
	position feed.Position // the zero Position: unknown
	covers   string        // the routes whose caches hold nothing from before the position
	stored   bool          // Redis has one; if it is the zero Position, a follower has given it up
}

// A bookmarks stores the bookmark of one feed: in Redis, for the fleet, or in this process. One
// goroutine uses it.
type bookmarks struct {
	conn  *redisconn.Conn // nil without Redis
	key   string
	fence int64    // of the present lease
	calls int64    // number of calls under the present lease
	last  bookmark // without Redis: the stored bookmark
}

// errOvertaken reports that another process follows the feed by now.
var errOvertaken = errors.New("another process has taken the feed over")

var (
	//go:embed scripts/bookmark.lua
	bookmarkText   string
	bookmarkScript = redisconn.NewScript(bookmarkText)
)

// bookmarkLife is how long Redis keeps the bookmark of a feed that nobody follows.
const bookmarkLife = 366 * 24 * time.Hour

func newBookmarks(rdb redis.UniversalClient, prefix, feed string) *bookmarks {
	b := &bookmarks{key: keys.Under(prefix, keys.Feed(feed))}
	if rdb != nil {
		b.conn = redisconn.New(rdb, time.Second, 64)
	}
	return b
}

// claim reads the bookmark at the beginning of a lease, and keeps all followers with lower fences
// from changing it.
func (b *bookmarks) claim(ctx context.Context, fence int64) (bookmark, error) {
	b.fence, b.calls = fence, 0
	return b.call(ctx)
}

// keep writes the bookmark. If keep returns nil, the bookmark is stored; after errOvertaken it is
// not, and after any other error it may be.
func (b *bookmarks) keep(ctx context.Context, now bookmark) error {
	if b.conn == nil {
		b.last = now
		return nil
	}
	_, err := b.call(ctx, "p", now.position.Text, "o", strconv.FormatUint(now.position.Order, 10), "c", now.covers)
	return err
}

// call runs the script. Calls are numbered: an abandoned call may reach Redis after later ones,
// and must not move the bookmark back.
func (b *bookmarks) call(ctx context.Context, fields ...any) (bookmark, error) {
	if b.conn == nil {
		return b.last, nil
	}
	b.calls++
	args := append([]any{b.fence, b.calls, bookmarkLife.Milliseconds()}, fields...)
	reply, err := b.conn.EvalOne(ctx, bookmarkScript, redisconn.Call{Keys: []string{b.key}, Args: args}, nil).List()
	if err != nil {
		return bookmark{}, fmt.Errorf("the position in Redis: %w", err)
	}
	if len(reply) != 4 {
		return bookmark{}, errOvertaken
	}
	text := func(i int) string { t, _ := reply[i].(string); return t }
	order, _ := strconv.ParseUint(text(2), 10, 64)
	return bookmark{position: feed.Position{Text: text(1), Order: order}, covers: text(3), stored: reply[1] != nil}, nil
}

// uncovered reports whether the caches of a route may hold values from before the position,
// because the follower that stored the bookmark did not have this route.
func (b bookmark) uncovered(r Route) bool {
	return b.position == (feed.Position{}) || !strings.Contains("\n"+b.covers+"\n", "\n"+r.name()+"\n")
}

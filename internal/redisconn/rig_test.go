package redisconn_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m, nil) }

// everywhere runs a test on miniredis, in a bubble, and on a real server.
// newClient makes a client of the one or the other.
func everywhere(t *testing.T, test func(t *testing.T, newClient func() *redis.Client)) {
	t.Run("mini", func(t *testing.T) {
		inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
			test(t, func() *redis.Client { return m.Client(t) })
		})
	})
	t.Run("real", func(t *testing.T) {
		s := redistest.Start(t)
		test(t, func() *redis.Client { return s.Client(t) })
	})
}

func inBubble(t *testing.T, test func(t *testing.T, m *redistest.MiniServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, redistest.Mini(t)) })
}

// open opens the link of rdb until the end of the test.
func open(t *testing.T, rdb redis.UniversalClient) *redisconn.Link {
	h := redisconn.OpenLink(rdb)
	t.Cleanup(h.Close)
	return h
}

// A listener notes what it is told, in order: "gap", "live", "dead", and the
// messages as they are.
type listener struct {
	t    *testing.T
	mu   sync.Mutex
	news []string             // guarded by mu
	when map[string]time.Time // the last time of each, guarded by mu
}

func listen(t *testing.T, h *redisconn.Link, channel string) (l *listener, unsubscribe func()) {
	l = &listener{t: t, when: map[string]time.Time{}}
	unsubscribe = h.Subscribe(channel, redisconn.Subscriber{
		Message: l.note,
		Gap:     func() { l.note("gap") },
		Live: func(live bool) {
			if live {
				l.note("live")
			} else {
				l.note("dead")
			}
		},
	})
	return l, unsubscribe
}

func (l *listener) note(news string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.news = append(l.news, news)
	l.when[news] = time.Now()
}

// heard returns all of the kinds of news in want that have come so far, in order.
func (l *listener) heard(want ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for _, news := range l.news {
		if slices.Contains(want, news) {
			found = append(found, news)
		}
	}
	return found
}

func (l *listener) last(news string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.when[news]
}

// await waits until news has come n times.
func (l *listener) await(within time.Duration, n int, news string) {
	l.t.Helper()
	what := fmt.Sprintf("%q is heard %d times", news, n)
	redistest.Eventually(l.t, within, what, func() bool { return len(l.heard(news)) >= n })
}

func (l *listener) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.news = nil
}

func publish(t *testing.T, rdb redis.UniversalClient, channel, message string) (receivers int64) {
	t.Helper()
	n, err := rdb.Publish(t.Context(), channel, message).Result()
	if err != nil {
		t.Errorf("publish: %v", err)
	}
	return n
}

// links returns how many subscription connections the server has.
func links(t *testing.T, rdb *redis.Client) int {
	t.Helper()
	list, err := rdb.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
	if err != nil {
		t.Errorf("client list: %v", err)
	}
	return strings.Count(list, "\n")
}

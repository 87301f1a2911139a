package follow

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// When a filter that a feed fills may lack rows: from a gap in the messages of any cache of its Follow on, and
// for catchUp after one of a second or more, whatever short gaps come then. Not while nobody calls Follow.
func TestAFilterIsBehindAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &Cache{Closing: t.Context()}, &Cache{Closing: t.Context()}
		ctx, cancel := context.WithCancel(t.Context())
		end := a.want(ctx)
		says := func(when string, want bool) {
			t.Helper()
			if got := a.Behind(); got != want {
				t.Errorf("%s: %v", when, got)
			}
		}
		gap := func(c *Cache, long time.Duration) {
			c.Live(false)
			time.Sleep(long)
			c.Live(true)
		}
		gap(a, 100*time.Millisecond)
		says("no feed fills it", false)
		a.along.Store(&[]*Cache{a, b})
		says("a process has begun", false)
		gap(a, 100*time.Millisecond)
		says("a clear was heard of and read", false)
		a.Live(false)
		says("in an outage", true)
		time.Sleep(time.Minute)
		a.Live(true)
		says("just after it", true)
		time.Sleep(time.Second)
		gap(a, 10*time.Millisecond)
		says("after it and a short gap", true)
		time.Sleep(catchUp)
		says("long after it", false)
		gap(b, time.Minute)
		says("after an outage of another cache's Redis", true)
		end()
		says("Follow has returned, and is called again", true)
		cancel()
		says("Follow has ended", false)
	})
}

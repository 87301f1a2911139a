package tier

import (
	"testing"
	"testing/synctest"
	"time"
)

// Catches a clock that leaves it to the ticker, whose goroutine may be starved.
func TestWhoeverReadsTheClockMovesItOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clock{began: time.Now()} // nobody ticks
		time.Sleep(time.Second)
		if now := c.now(); now != int64(time.Second) || c.soon.Load() < now {
			t.Errorf("now is %v and soon %v", now, c.soon.Load())
		}
	})
}

// Catches a plain store: a publisher that is held up between reading the time
// and publishing it would bring ended entries back.
func TestTheClockNeverGoesBack(t *testing.T) {
	var c clock
	c.publish(int64(time.Second))
	c.publish(int64(time.Millisecond))
	if got := c.soon.Load(); got != int64(time.Second+lead) {
		t.Errorf("soon is %v", got)
	}
}

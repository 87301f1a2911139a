package tier

import (
	"sync"
	"sync/atomic"
	"time"
)

// A hit does not read the system's clock, which would cost more than the hit. A
// timer publishes the time each tick, ahead by lead. So a life ends early, by at
// most lead; it ends late only if the timer is late by more than a tick. Fills read
// the clock anyway, and publish the time if the timer is late. The first fill starts
// the timer: an empty cache has none.
const (
	tick = 25 * time.Millisecond
	lead = 2 * tick
)

// A clock counts nanoseconds from its start.
type clock struct {
	soon  atomic.Int64 // at least now, usually a little later; never goes back
	began time.Time

	running atomic.Bool
	mu      sync.Mutex // guards what follows
	timer   *time.Timer
	stopped bool
}

func (c *clock) start() {
	c.began = time.Now()
	c.publish(0)
}

// stop ends the ticks. When it returns, tick publishes no more.
func (c *clock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

// run starts the ticks.
func (c *clock) run() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil && !c.stopped {
		c.timer = time.AfterFunc(tick, c.tick)
		c.running.Store(true)
	}
}

func (c *clock) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.publish(int64(time.Since(c.began)))
		c.timer.Reset(tick)
	}
}

// now reads the system's clock. The time that it returns is never after soon.
func (c *clock) now() int64 {
	if !c.running.Load() {
		c.run()
	}
	now := int64(time.Since(c.began))
	if c.soon.Load() < now {
		c.publish(now)
	}
	return now
}

// publish moves soon forward to now and lead, and never back, since entries whose life
// has ended would count again.
func (c *clock) publish(now int64) {
	for {
		soon := c.soon.Load()
		if soon >= now+int64(lead) || c.soon.CompareAndSwap(soon, now+int64(lead)) {
			return
		}
	}
}

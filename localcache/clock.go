package localcache

import (
	"sync"
	"sync/atomic"
	"time"
)

// A hit does not ask the system for the time, which would cost more than the
// hit. A goroutine publishes the time each tick, ahead by lead. So a life ends early,
// by at most lead; it ends late only if the goroutine is late by more than a tick.
// Fills read the time anyway, and publish it if the goroutine is late.
const (
	tick = 25 * time.Millisecond
	lead = 2 * tick
)

// A clock counts nanoseconds from its start.
type clock struct {
	soon  atomic.Int64 // at least now, usually a little later; never goes back
	began time.Time

	quit chan struct{}
	done sync.WaitGroup
}

func (c *clock) start() {
	c.began = time.Now()
	c.quit = make(chan struct{})
	c.publish(0)
	c.done.Go(c.run)
}

func (c *clock) stop() {
	close(c.quit)
	c.done.Wait()
}

func (c *clock) run() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.publish(int64(time.Since(c.began)))
		case <-c.quit:
			return
		}
	}
}

// now reads the time itself. What it returns is never after soon.
func (c *clock) now() int64 {
	now := int64(time.Since(c.began))
	if c.soon.Load() < now {
		c.publish(now)
	}
	return now
}

// publish moves soon forward and never back: entries whose life has ended would
// count again.
func (c *clock) publish(now int64) {
	for {
		soon := c.soon.Load()
		if soon >= now+int64(lead) || c.soon.CompareAndSwap(soon, now+int64(lead)) {
			return
		}
	}
}

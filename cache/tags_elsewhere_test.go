package cache_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A message names the cleared tags, and each process reads the counters of these. Catches a process that
// reads all counters: each clear would cost each process as much as there are tags.
func TestAClearOfATagIsReadByItself(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	source := newRows(r, 1)
	c, other := open(r, source.tagged()), open(r, source.tagged())
	r.eventually("messages arrive", func() bool { return c.Stats().Live && other.Stats().Live })
	var tags []string
	for n := range int64(5000) {
		tags = append(tags, tenant(n))
	}
	if err := c.ClearTags(r.ctx, tags...); err != nil {
		r.Fatal(err)
	}
	other.gives(r, 1, "v1")
	before := server.Stat("total_net_output_bytes")
	for round := range 20 {
		value := fmt.Sprint("v", round)
		source.put(1, value)
		if err := c.ClearTags(r.ctx, tenant(0)); err != nil {
			r.Fatal(err)
		}
		r.eventually("the other follows", func() bool { got, err := other.Get(r.ctx, 1); return err == nil && got == value })
	}
	if sent := server.Stat("total_net_output_bytes") - before; sent > 200_000 {
		r.Errorf("%d bytes sent for 20 clears of a tag of 5,000; all of them are some 100,000", sent)
	}
}

// A process that starts later has heard no message of a clear, and Redis still has a value from before
// it. Catches a process that takes an unknown tag for one that was never cleared.
func TestAProcessThatStartsLaterKnowsWhichTagsWereCleared(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "real", local: true}}, func(r *rig) {
		source := newRows(r, 1, 11)
		first := open(r, source.tagged())
		first.gives(r, 1, "v1")
		first.gives(r, 11, "v1")
		source.put(1, "v2")
		source.put(11, "v2")
		if err := first.ClearTags(r.ctx, tenant(0)); err != nil {
			r.Fatal(err)
		}
		later := open(r, source.tagged())
		later.gives(r, 1, "v2")
		later.gives(r, 11, "v1")
	})
}

// A process gets no messages for a while, and reads all the clears that it has missed as soon as they
// arrive again. Catches a process that reads only those that later messages name.
func TestAfterAGapAllClearedTagsAreRead(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real", local: true})
	r.deaf, r.patient = true, true
	p := redistest.Proxy(t, server.Addr())
	source := newRows(r)
	for n := range int64(100) {
		source.put(10*n, "v1")
	}
	asleep, c := openOn(r, p.Client(t), source.tagged()), open(r, source.tagged())
	for n := range int64(100) {
		asleep.gives(r, 10*n, "v1")
	}
	r.eventually("messages arrive", func() bool { return asleep.Stats().Live })
	p.DropMessages(true)
	for n := range int64(100) {
		source.put(10*n, "v2")
		if err := c.ClearTags(r.ctx, tenant(n)); err != nil {
			r.Fatal(err)
		}
	}
	if err := asleep.ClearTags(r.ctx, "mine"); err != nil { // which it knows, and which is later than what it has missed
		r.Fatal(err)
	}
	r.eventually("it notices", func() bool { return !asleep.Stats().Live })
	p.DropMessages(false)
	r.eventually("messages arrive again", func() bool { return asleep.Stats().Live })
	for n := range int64(100) {
		asleep.gives(r, 10*n, "v2")
	}
}

// Redis answers a process later than after RedisTimeout, and still sends it messages: it hears of a clear, and
// cannot read which. Catches a local tier that is trusted meanwhile: values would live for Local.TTL.
func TestClearsThatAreHeardOfAndCannotBeReadEndLocalValues(t *testing.T) {
	for what, clears := range map[string]func(context.Context, *cache.Cache[int64, string]) error{
		"a tag":      func(ctx context.Context, c *cache.Cache[int64, string]) error { return c.ClearTags(ctx, tenant(0)) },
		"everything": func(ctx context.Context, c *cache.Cache[int64, string]) error { return c.Clear(ctx) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			r := onServer(t, server, cell{redis: "real", local: true})
			p := redistest.Proxy(t, server.Addr())
			source := newRows(r, 1)
			c, other := openOn(r, p.Client(t), source.tagged(), func(o *cache.Options) { o.RedisTimeout = 500 * time.Millisecond }), open(r, source.tagged())
			r.eventually("memory is trusted with a value older than a second", func() bool {
				c.gives(r, 1, "v1")
				time.Sleep(1100 * time.Millisecond)
				got, _ := c.Fetch(r.ctx, 1)
				return got.Tier == cache.TierLocal
			})
			p.Delay(700 * time.Millisecond)
			source.put(1, "v2")
			if err := clears(r.ctx, other.Cache); err != nil {
				r.Fatal(err)
			}
			c.comesTo(r, 1, "v2")
			p.Delay(0)
			r.eventually("the clears are known", func() bool { return c.Stats().Live })
			c.gives(r, 1, "v2")
		})
	}
}

// A process may learn of its own ClearTags before an earlier one of another process, and compare a value
// with its tags in between. The earlier clear ends this value all the same. Catches a mark that is the
// time of the latest clear: no later look would find that the value's tags were cleared.
func TestAnEarlierClearOfATagThatIsLearnedLateEndsItsValues(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real", local: true})
	r.patient = true // or the look is repeated while its reply is held
	p := redistest.Proxy(t, server.Addr())
	source := newRows(r, 1)
	c, other := openOn(r, p.Client(t), source.tagged()), open(r, source.tagged())
	c.gives(r, 1, "v1")
	held, release := p.HoldReply("EVALSHA") // of the look that follows the message
	source.put(1, "v2")
	if err := other.ClearTags(r.ctx, tenant(0)); err != nil {
		r.Fatal(err)
	}
	<-held
	if err := c.ClearTags(r.ctx, "mine"); err != nil {
		r.Fatal(err)
	}
	for range 2 {
		c.gives(r, 1, "v1")
	}
	release()
	r.eventually("it learns of the other's clear", func() bool { got, err := c.Get(r.ctx, 1); return err == nil && got == "v2" })
}

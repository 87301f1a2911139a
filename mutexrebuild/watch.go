package mutexrebuild

import (
	"bytes"
	"context"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// The looks of Watch are so far apart, give or take a quarter: at first, and at last.
const (
	firstWatch = 50 * time.Millisecond
	maxWatch   = time.Second
)

// Watch looks for a published value of id other than seen, first after about 50 ms and
// then at growing intervals, until stop is called. published receives when there is one.
//
// It is for a caller who waits before it asks for the lease. A commit sends a message only
// if somebody has asked for the lease in vain, and this caller has not asked. Without
// Redis there is nothing to look at.
func (g *Group) Watch(ctx context.Context, id string, seen []byte) (published <-chan struct{}, stop func()) {
	if g.redis == nil {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	there := make(chan struct{}, 1)
	timer := time.AfterFunc(wait.Jitter(firstWatch, 0.25), func() {
		for pause := firstWatch; ctx.Err() == nil; pause = min(2*pause, maxWatch) {
			if value := g.redis.getOne(ctx, id); len(value.Data) > 0 && !bytes.Equal(value.Data, seen) {
				there <- struct{}{}
				return
			}
			wait.Sleep(ctx, wait.Jitter(pause, 0.25))
		}
	})
	return there, func() { timer.Stop(); cancel() }
}

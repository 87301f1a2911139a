package audit

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/wait"
)

// A looker is what a Shadow and a Ledger share: looks in the background, until it is closed.
type looker[K comparable, V any] struct {
	judge[K, V]
	load    cache.Loader[K, V]
	places  chan struct{}   // has room for the looks that run
	loads   chan struct{}   // has room for the loads that run, of which a look may leave some behind
	failed  *atomic.Uint64  // counts looks that failed
	ctx     context.Context // ends with the looker, and with the cache
	stop    context.CancelFunc
	running wait.Tasks
}

const (
	lookTimeout  = time.Minute      // for a look; it leaves behind a load that does not end with its context
	closeTimeout = 10 * time.Second // for close, which then leaves behind what runs
)

var errLoads = errors.New("audit: loads of looks that have ended still run: let the load end with its context")

func (l *looker[K, V]) open(of inside.Audit[K, V], load cache.Loader[K, V], equal func(a, b V) bool, places int, failed *atomic.Uint64) {
	l.judge, l.load, l.failed = judge[K, V]{of, equal}, load, failed
	l.places, l.loads = make(chan struct{}, places), make(chan struct{}, 2*places)
	l.ctx, l.stop = context.WithCancel(of.Closing)
}

func (l *looker[K, V]) close() {
	l.stop()
	l.running.CloseWithin(closeTimeout)
}

// run calls look when there is a place, with the values of ctx.
func (l *looker[K, V]) run(ctx context.Context, look func(context.Context) error) {
	select {
	case l.places <- struct{}{}:
		defer func() { <-l.places }()
	case <-l.ctx.Done():
		return
	}
	if l.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	l.call(func() error { return look(ctx) })
}

// call calls fn, in which are the user's functions, on a goroutine of its own, which they may end.
func (l *looker[K, V]) call(fn func() error) { l.end(<-contain.Go(fn)) }

// end counts the error of a look, if it has one.
func (l *looker[K, V]) end(err error) {
	if err != nil && l.ctx.Err() == nil {
		l.failed.Add(1)
		notCompared(l.of.Log, err)
	}
}

// source reads the source for a look, if the cache has given something.
func (l *looker[K, V]) source(ctx context.Context, key K, look *inside.Look[V]) (err error) {
	if !look.There {
		return nil
	}
	select {
	case l.loads <- struct{}{}:
	default:
		return errLoads
	}
	if !l.running.Begin() {
		<-l.loads
		return cache.ErrClosed
	}
	look.Source, _, err = contain.Race(ctx, func() (V, error) {
		defer func() { <-l.loads; l.running.End() }()
		return l.load(ctx, key)
	})
	if look.Gone = l.of.Absent(look.Source, err); look.Gone {
		return nil
	}
	return err
}

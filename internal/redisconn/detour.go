package redisconn

import (
	"context"
	"net"
	"os"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/redis/go-redis/v9"
)

// A detour is the innermost hook of a client. It sends the commands of a Conn by the copy
// that their context names, and passes all others on.
//
// A hook that the user adds later is further in, and our hook would skip it. When a hook is
// added, go-redis builds the whole chain anew, which our hook notices by the function that it
// is given to call: the chain ends in another one. The next operation then adds our hook once
// more, and the old one passes everything on. All Conns of a client share one detour.
type detour struct {
	dialing  atomic.Int32 // connections that are being opened
	refused  atomic.Bool  // the last attempt to open one failed, and not by a timeout
	passedBy atomic.Bool  // a hook of the user is further in
	late     atomic.Int32 // operations that ran out of time, see Link.connect
	newest   atomic.Pointer[detourHook]

	mu    sync.Mutex // guards what follows
	added int
}

// maxDetours bounds our hooks on one client, should go-redis end its chain in a new function each time.
const maxDetours = 16

// byBare is the context key of the copy that sends the commands with that context.
type byBare struct{}

var detours = struct {
	mu       sync.Mutex
	byClient map[weak.Pointer[redis.Client]]*detour
}{byClient: map[weak.Pointer[redis.Client]]*detour{}}

// detourOf returns the detour of a client. The detour lasts as long as the client.
func detourOf(rdb *redis.Client) *detour {
	name := weak.Make(rdb)
	detours.mu.Lock()
	defer detours.mu.Unlock()
	d := detours.byClient[name]
	if d == nil {
		d = &detour{}
		d.passedBy.Store(true)
		detours.byClient[name] = d
		runtime.AddCleanup(rdb, func(name weak.Pointer[redis.Client]) {
			detours.mu.Lock()
			defer detours.mu.Unlock()
			delete(detours.byClient, name)
		}, name)
	}
	d.keepInnermost(rdb)
	return d
}

// keepInnermost adds our hook if it is not the innermost.
func (d *detour) keepInnermost(rdb *redis.Client) {
	if !d.passedBy.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.passedBy.Load() || d.added == maxDetours {
		return
	}
	d.added++
	d.passedBy.Store(false)
	h := &detourHook{detour: d}
	d.newest.Store(h)
	rdb.AddHook(h)
}

type detourHook struct {
	detour    *detour
	commands  atomic.Uintptr // the end of the chain for commands when the hook was added
	pipelines atomic.Uintptr // the end of the chain for pipelines when the hook was added
}

func (h *detourHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		h.detour.dialing.Add(1)
		defer h.detour.dialing.Add(-1)
		conn, err := next(ctx, network, addr)
		h.detour.refused.Store(err != nil && ctx.Err() == nil && !os.IsTimeout(err))
		return conn, err
	}
}

func (h *detourHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	end := reflect.ValueOf(next).Pointer()
	if !h.commands.CompareAndSwap(0, end) && end != h.commands.Load() && h.detour.newest.Load() == h {
		h.detour.passedBy.Store(true)
	}
	return func(ctx context.Context, cmd redis.Cmder) error {
		if bare := h.bare(ctx); bare != nil {
			return bare.Process(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

func (h *detourHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	end := reflect.ValueOf(next).Pointer()
	h.pipelines.CompareAndSwap(0, end)
	return func(ctx context.Context, cmds []redis.Cmder) error {
		bare := h.bare(ctx)
		if bare == nil || end != h.pipelines.Load() { // another end: a transaction
			return next(ctx, cmds)
		}
		p := bare.Pipeline()
		_ = p.BatchProcess(ctx, cmds...)
		_, err := p.Exec(ctx)
		return err
	}
}

// bare returns the copy that sends the commands with ctx, nil if the hook has to pass them on.
func (h *detourHook) bare(ctx context.Context) *redis.Client {
	bare, _ := ctx.Value(byBare{}).(*redis.Client)
	if bare == nil || h.detour.newest.Load() != h {
		return nil
	}
	return bare
}

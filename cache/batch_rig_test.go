package cache_test

import (
	"context"
	"net"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
)

// shared are cells in which several processes share a Redis.
var shared = []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real"}, {redis: "real", local: true}}

// batches is a source with LoadMany alone that remembers its calls.
type batches struct {
	mu     sync.Mutex // guards what follows
	values map[int64]string
	calls  [][]int64
	slow   func(ctx context.Context, keys []int64) error // runs in each call after the rows have been read
}

// newBatches makes a table of the values "v1" for keys from first to last, which the
// rig's filter knows.
func newBatches(r *rig, first, last int64) *batches {
	b := &batches{values: map[int64]string{}}
	for key := first; key <= last; key++ {
		b.values[key] = "v1"
		r.known(key)
	}
	return b
}

func (b *batches) load(ctx context.Context, keys []int64) (map[int64]string, error) {
	b.mu.Lock()
	b.calls = append(b.calls, slices.Clone(keys))
	found := map[int64]string{}
	for _, key := range keys {
		if value, ok := b.values[key]; ok {
			found[key] = value
		}
	}
	slow := b.slow
	b.mu.Unlock()
	if slow != nil {
		if err := slow(ctx, keys); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (b *batches) source() cache.Source[int64, string] {
	return cache.Source[int64, string]{LoadMany: b.load}
}

// oneByOne is the same table without LoadMany.
func (b *batches) oneByOne() cache.Source[int64, string] {
	return cache.Source[int64, string]{Load: func(ctx context.Context, key int64) (string, error) {
		found, err := b.load(ctx, []int64{key})
		value, ok := found[key]
		if err == nil && !ok {
			err = cache.ErrNotFound
		}
		return value, err
	}}
}

// alike is the source for n keys that are read by fetches: with LoadMany for a page.
func (b *batches) alike(n int64) cache.Source[int64, string] {
	if n > 1 {
		return b.source()
	}
	return b.oneByOne()
}

func (b *batches) put(key int64, value string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.values[key] = value
}

// slowly sets what each call does after it has read its rows.
func (b *batches) slowly(slow func(ctx context.Context, keys []int64) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slow = slow
}

// loads returns how often each key was asked for, and by how many calls.
func (b *batches) loads() (byKey map[int64]int, calls int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	byKey = map[int64]int{}
	for _, keys := range b.calls {
		for _, key := range keys {
			byKey[key]++
		}
	}
	return byKey, len(b.calls)
}

func (b *batches) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = nil
}

// loadedOnce fails the test unless each of n keys was asked for once.
func (b *batches) loadedOnce(r *rig, n int) {
	r.Helper()
	byKey, _ := b.loads()
	if len(byKey) != n {
		r.Errorf("want %d keys loaded, got %d", n, len(byKey))
	}
	again := 0
	for _, count := range byKey {
		if count > 1 {
			again++
		}
	}
	if again > 0 {
		r.Errorf("want each key loaded once, got %d of them loaded again", again)
	}
}

// upTo is the keys from first to last.
func upTo(first, last int64) (keys []int64) {
	for key := first; key <= last; key++ {
		keys = append(keys, key)
	}
	return keys
}

// givesMany fails the test unless all keys have this value.
func (p *probe[K, V]) givesMany(r *rig, keys []K, want any) {
	r.Helper()
	got, err := p.GetMany(r.ctx, keys)
	if err != nil || len(got) != len(keys) {
		r.Errorf("want %d values, got %d, %v", len(keys), len(got), err)
	}
	for key, value := range got {
		if any(value) != want {
			r.Errorf("want %v for %v, got %v", want, key, value)
		}
	}
}

// fetches reads a key by Fetch, and a page by FetchMany.
func (p *probe[K, V]) fetches(r *rig, keys []K) (map[K]cache.Result[V], error) {
	if len(keys) > 1 {
		return p.FetchMany(r.ctx, keys)
	}
	got, err := p.Fetch(r.ctx, keys[0])
	return map[K]cache.Result[V]{keys[0]: got}, err
}

// traffic is a hook that counts what a client sends.
type traffic struct {
	mu                  sync.Mutex // guards what follows
	commands, pipelines int
	longest             int // commands of a pipeline
}

func (*traffic) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (n *traffic) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		isEpoch := len(cmd.Args()) > 3 && cmd.Args()[3] == clearsKey() // read at the start, beside the rest
		if name := cmd.Name(); name == "getrange" || (name == "evalsha" || name == "eval") && !isEpoch {
			n.mu.Lock()
			n.commands++
			n.mu.Unlock()
		}
		return next(ctx, cmd)
	}
}

func (n *traffic) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "hello" || cmds[0].Name() == "client" { // a connection's beginning
			return next(ctx, cmds)
		}
		n.mu.Lock()
		n.pipelines++
		n.longest = max(n.longest, len(cmds))
		n.mu.Unlock()
		return next(ctx, cmds)
	}
}

// since returns what was counted since the last call.
func (n *traffic) since() (commands, pipelines int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	commands, pipelines = n.commands, n.pipelines
	n.commands, n.pipelines = 0, 0
	return commands, pipelines
}

// watched makes a client of another process that sent counts. It keeps to a context's
// deadline by itself: reads use a copy of a client that does not, and a copy loses hooks.
func (r *rig) watched(sent *traffic) redis.UniversalClient {
	rdb := r.client()
	rdb.(*redis.Client).Options().ContextTimeoutEnabled = true
	rdb.AddHook(sent)
	return rdb
}

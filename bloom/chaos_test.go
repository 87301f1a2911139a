package bloom_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
)

// chaosOptions: both processes must agree on the name. Their filters may have other sizes: whose
// Rebuild it is decides.
func chaosOptions(capacity uint64) func(o *bloom.Options) {
	return func(o *bloom.Options) {
		o.Name, o.Capacity = "chaos", capacity
		o.MaxLag, o.MaxTransaction = 500*time.Millisecond, time.Second
	}
}

// A checker asks for all ids that it was given, over and over.
type checker struct {
	f      *bloom.Filter
	old    int // idOf(0) to idOf(old-1) are rows from the beginning
	mu     sync.Mutex
	ids    []string
	asked  atomic.Int64
	denied atomic.Int64 // of ids that nobody added
}

func (c *checker) give(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids = append(c.ids, id)
}

// run says which ids are denied, until ctx ends. It leaves the processor to the others:
// what is wrong is denied for longer than it rests.
func (c *checker) run(ctx context.Context, say func(id string)) {
	for absent := 0; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		c.mu.Lock()
		ids := c.ids[max(0, len(c.ids)-2000):]
		c.mu.Unlock()
		for _, id := range ids {
			if !c.f.MayContain(ctx, id) {
				say(id)
			}
		}
		c.asked.Add(int64(len(ids)))
		for range min(c.old, 1000) {
			if id := idOf(rand.IntN(c.old)); !c.f.MayContain(ctx, id) {
				say(id)
			}
		}
		for range 10 {
			absent++
			if !c.f.MayContain(ctx, "absent:"+strconv.Itoa(absent)) {
				c.denied.Add(1)
			}
		}
	}
}

// Two processes add and ask while the filter is rebuilt, in another size each time, flushed,
// cut off, silenced and corrupted. An id may be denied neither by who added it, from then on,
// nor by the other from MaxLag after, once its row is committed.
func TestChaosNoProcessDeniesWhatIsThere(t *testing.T) { chaos(t, 0) }

// The same with 10 M rows from the beginning: to load a copy, to scan and to write a snapshot
// take time, in which all the rest goes on.
func TestChaosTenMillionIds(t *testing.T) {
	redistest.Long(t)
	chaos(t, 10_000_000)
}

func chaos(t *testing.T, old int) {
	t.Parallel()
	s := redistest.Start(t)
	capacity := uint64(old + 200_000)
	mine, theirs := redistest.Proxy(t, s.Addr()), redistest.Proxy(t, s.Addr())
	f := open(t, mine.Client(t), chaosOptions(capacity))
	wide := open(t, mine.Client(t), chaosOptions(2*capacity), func(o *bloom.Options) { o.FalsePositiveRate = 0.001 })
	child := redistest.Child(t, "chaotic", theirs.Addr(), strconv.Itoa(old))
	child.Expect("open")

	var o bloom.Options
	chaosOptions(capacity)(&o)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var running sync.WaitGroup
	here := &checker{f: f, old: old}
	running.Go(func() { here.run(ctx, func(id string) { t.Errorf("%s is denied here", id) }) })

	// The database: a row is committed at most MaxTransaction after its id was added.
	var mu sync.Mutex
	rows := map[string]bool{}
	commit := func(id string, begun time.Time) bool {
		mu.Lock()
		defer mu.Unlock()
		rows[id] = time.Since(begun) < o.MaxTransaction
		return rows[id]
	}
	running.Go(func() { // adds of this process
		for i := 0; ctx.Err() == nil; i++ {
			id, begun := "here:"+strconv.Itoa(i), time.Now()
			if f.Add(ctx, id) != nil || !commit(id, begun) {
				continue
			}
			here.give(id)
			time.AfterFunc(o.MaxLag, func() { child.Send("%s", id) })
			time.Sleep(time.Millisecond)
		}
	})
	var summary string
	var reading sync.WaitGroup
	reading.Go(func() { // adds of the other process
		for {
			line, ok := child.Next()
			if !ok {
				return
			}
			var id string
			var begun, added int64
			if n, _ := fmt.Sscanf(line, "added %s %d %d", &id, &begun, &added); n == 3 {
				if commit(id, time.Unix(0, begun)) {
					time.AfterFunc(time.Until(time.Unix(0, added).Add(o.MaxLag)), func() { here.give(id) })
				}
			} else if strings.HasPrefix(line, "denied") {
				t.Errorf("there: %s", line)
			} else {
				summary = line
			}
		}
	})
	rebuild := func() {
		// 10 M rows take a minute alone, and four beside the chaos of another package.
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second+time.Duration(old)*100*time.Microsecond)
		defer cancel()
		err := []*bloom.Filter{f, wide}[rand.IntN(2)].Rebuild(ctx, func(yield func(string, error) bool) {
			mu.Lock()
			var ids []string
			for id, there := range rows {
				if there {
					ids = append(ids, id)
				}
			}
			mu.Unlock()
			for _, id := range ids {
				if !yield(id, nil) {
					return
				}
			}
			numbered(0, old)(yield)
		})
		if err != nil {
			t.Logf("Rebuild: %v", err)
		}
	}
	rebuild()
	fresh := func() { // a process that starts, and loads what is damaged
		here.mu.Lock()
		ids := slices.Clone(here.ids)
		here.mu.Unlock()
		c := &checker{f: open(t, s.Client(t), chaosOptions(capacity)), old: old, ids: ids}
		defer c.f.Close()
		ctx, cancel := context.WithTimeout(ctx, 600*time.Millisecond)
		defer cancel()
		c.run(ctx, func(id string) { t.Errorf("%s is denied by a process that has just started", id) })
	}
	count := faults(t, s, mine, theirs, rebuild, fresh)
	cancel()
	running.Wait()
	time.Sleep(o.MaxLag) // for the last of what AfterFunc sends
	child.Send("stop")
	reading.Wait()
	t.Logf("here %d ids asked for, %d absent ones denied, %d faults; there %s", here.asked.Load(), here.denied.Load(), count, summary)
	if here.denied.Load() == 0 || strings.HasSuffix(summary, " 0") {
		t.Error("a process has denied nothing at all")
	}
}

// faults does one after the other, in random order.
func faults(t *testing.T, s *redistest.Server, mine, theirs *redistest.FaultProxy, rebuild, fresh func()) (n int) {
	ctx := context.Background()
	rdb := s.Client(t)
	pick := func() *redistest.FaultProxy { return []*redistest.FaultProxy{mine, theirs}[rand.IntN(2)] }
	all := []func(){
		rebuild,
		func() { rdb.FlushAll(ctx); time.Sleep(rand.N(600 * time.Millisecond)); rebuild() },
		func() { rdb.ClientKillByFilter(ctx, "SKIPME", "yes") },
		func() { rdb.ScriptFlush(ctx) },
		func() { p := pick(); p.Blackhole(true); time.Sleep(time.Second); p.Blackhole(false) },
		func() { p := pick(); p.BlackholeOld(); time.Sleep(time.Second) },
		func() { pick().Cut() },
		func() { p := pick(); p.DropMessages(true); time.Sleep(time.Second); p.DropMessages(false) },
		func() { p := pick(); p.Delay(50 * time.Millisecond); time.Sleep(time.Second); p.Delay(0) },
		func() {
			for _, key := range rdb.Keys(ctx, "*:s:*").Val() {
				piece := []byte(rdb.HGet(ctx, key, "0").Val())
				if len(piece) > 0 {
					piece[rand.IntN(len(piece))] ^= byte(1 + rand.IntN(255))
					rdb.HSet(ctx, key, "0", piece)
				}
			}
			fresh()
			rebuild()
		},
		func() { rdb.Del(ctx, rdb.Keys(ctx, "*:log").Val()...) },
		func() { rdb.Del(ctx, rdb.Keys(ctx, "*:s:*").Val()...); fresh(); rebuild() },
		func() { s.Kill(); time.Sleep(300 * time.Millisecond); s.Restart(); rebuild() },
		func() { s.Stop(); time.Sleep(800 * time.Millisecond); s.Cont() },
	}
	for end := time.Now().Add(redistest.Pick(15*time.Second, 2*time.Minute)); time.Now().Before(end) && !t.Failed(); {
		for _, i := range rand.Perm(len(all)) {
			if time.Now().After(end) || t.Failed() {
				break
			}
			all[i]()
			n++
			time.Sleep(200 * time.Millisecond)
		}
	}
	return n
}

// chaotic is the other process.
func chaotic(p *redistest.Parent, args []string) error {
	rdb := redis.NewClient(&redis.Options{Addr: args[0]})
	defer rdb.Close()
	old, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	f, err := bloom.Open(context.Background(), rdb, sharedOptions(chaosOptions(uint64(old+200_000))))
	if err != nil {
		return err
	}
	defer f.Close()
	p.Say("open")

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	c := &checker{f: f, old: old}
	running.Go(func() { c.run(ctx, func(id string) { p.Say("denied %s", id) }) })
	running.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			id, begun := "there:"+strconv.Itoa(i), time.Now()
			if f.Add(ctx, id) == nil {
				p.Say("added %s %d %d", id, begun.UnixNano(), time.Now().UnixNano())
				if !f.MayContain(ctx, id) {
					p.Say("denied %s after its own Add", id)
				}
			}
			time.Sleep(time.Millisecond)
		}
	})
	for line := p.Next(); line != "stop"; line = p.Next() {
		c.give(line)
	}
	cancel()
	running.Wait()
	p.Say("%d ids asked for, absent ones denied: %d", c.asked.Load(), c.denied.Load())
	return nil
}

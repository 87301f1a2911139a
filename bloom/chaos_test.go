package bloom_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// chaosOptions: both processes must agree on them. A counting filter is so crowded that
// most positions are needed by several ids.
func chaosOptions(counting bool) func(o *bloom.Options) {
	return func(o *bloom.Options) {
		o.Name, o.Capacity = "chaos", 200_000
		o.MaxLag, o.MaxTransaction = 500*time.Millisecond, time.Second
		if counting {
			o.Counting, o.Capacity, o.FalsePositiveRate = true, 20_000, 0.05
		}
	}
}

// A checker asks for all ids that it was given, over and over.
type checker struct {
	f      *bloom.Filter
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
		for range 10 {
			absent++
			if !c.f.MayContain(ctx, "absent:"+strconv.Itoa(absent)) {
				c.denied.Add(1)
			}
		}
	}
}

// come adds ids that are never rows, and removes them again, each once, whatever comes of
// that: their positions are those of others. It begins no Remove later than it may.
func come(ctx context.Context, f *bloom.Filter, who string, within time.Duration) (removed int) {
	for i := 0; ctx.Err() == nil; i++ {
		ids, begun := make([]string, 1+i%5), time.Now()
		for j := range ids {
			ids[j] = fmt.Sprintf("%s:%d:%d", who, i, j)
		}
		if f.Add(ctx, ids...) == nil && time.Since(begun) < within && f.Remove(ctx, ids...) == nil {
			removed += len(ids)
		}
		time.Sleep(time.Millisecond)
	}
	return removed
}

// Two processes add and ask while the filter is rebuilt, flushed, cut off, silenced
// and corrupted. An id may be denied neither by who added it, from then on, nor by
// the other from MaxLag after, once its row is committed.
func TestChaosNoProcessDeniesWhatIsThere(t *testing.T) { chaos(t, false) }

// The same while both also remove what they have added, some of it sent twice: a
// position counted down twice is cleared under others.
func TestChaosNoProcessDeniesWhatIsThereBesideRemoves(t *testing.T) { chaos(t, true) }

func chaos(t *testing.T, counting bool) {
	t.Parallel()
	s := redistest.Start(t)
	mine, theirs := redistest.Proxy(t, s.Addr()), redistest.Proxy(t, s.Addr())
	f := open(t, mine.Client(t), chaosOptions(counting))
	child := redistest.Child(t, "chaotic", theirs.Addr(), strconv.FormatBool(counting))
	child.Expect("open")

	var o bloom.Options
	chaosOptions(counting)(&o)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var running sync.WaitGroup
	here := &checker{f: f}
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
	if counting {
		running.Go(func() { t.Logf("%d ids came and went here", come(ctx, f, "gone here", o.MaxTransaction)) })
	}
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
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		err := f.Rebuild(ctx, func(yield func(string, error) bool) {
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
		})
		if err != nil {
			t.Logf("Rebuild: %v", err)
		}
	}
	rebuild()
	count := faults(t, s, counting, mine, theirs, rebuild)
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
func faults(t *testing.T, s *redistest.Server, counting bool, mine, theirs *redistest.FaultProxy, rebuild func()) (n int) {
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
			for _, key := range rdb.Keys(ctx, "*:g:*").Val() {
				if strings.Contains(key, ":c") {
					rdb.Del(ctx, key) // nobody could tell that a counter is another one
				} else if rdb.Type(ctx, key).Val() == "string" {
					rdb.SetBit(ctx, key, rand.Int64N(200_000), rand.IntN(2))
					rdb.SetRange(ctx, key, rand.Int64N(20_000), "corrupt")
				}
			}
			rdb.Del(ctx, rdb.Keys(ctx, "*:log").Val()...) // so that a new copy is loaded
			time.Sleep(600 * time.Millisecond)
			rebuild()
		},
		func() { rdb.Del(ctx, rdb.Keys(ctx, "*:log").Val()...) },
		func() { rdb.Del(ctx, rdb.Keys(ctx, "*:g:*").Val()...); time.Sleep(600 * time.Millisecond); rebuild() },
		func() { s.Kill(); time.Sleep(300 * time.Millisecond); s.Restart(); rebuild() },
		func() {
			if counting {
				for range 50 {
					pick().CutReplies(1, "EVALSHA")
					time.Sleep(rand.N(20 * time.Millisecond))
				}
			}
		},
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
	f, err := bloom.Open(context.Background(), rdb, sharedOptions(chaosOptions(args[1] == "true")))
	if err != nil {
		return err
	}
	defer f.Close()
	p.Say("open")

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	c := &checker{f: f}
	running.Go(func() { c.run(ctx, func(id string) { p.Say("denied %s", id) }) })
	removed := 0
	if args[1] == "true" {
		running.Go(func() { removed = come(ctx, f, "gone there", time.Second) })
	}
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
	p.Say("%d ids asked for, %d came and went, absent ones denied: %d", c.asked.Load(), removed, c.denied.Load())
	return nil
}

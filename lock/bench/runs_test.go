package bench

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

// pairs takes a free lock and gives it back n times, and returns how long each pair took.
func pairs(t testing.TB, l locker, n int) []time.Duration {
	t.Helper()
	took := make([]time.Duration, 0, n)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range n {
		began := time.Now()
		unlock, err := l.Lock(ctx, "a")
		if err == nil {
			err = unlock()
		}
		took = append(took, time.Since(began))
		if err != nil {
			t.Fatalf("%T: %v", l, err)
		}
	}
	return took
}

// A crowd is what one process counted.
type crowd struct {
	Acquired []int // by each goroutine
	Worst    time.Duration
	Failed   string // the first error
}

// contend runs goroutines that take one lock, hold it and give it back until the time is over.
func contend(l locker, goroutines int, hold, runs time.Duration) crowd {
	result := crowd{Acquired: make([]int, goroutines)}
	ctx, cancel := context.WithTimeout(context.Background(), runs)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				unlock, err := l.Lock(ctx, "a")
				waited := time.Since(began) // also when the time was over
				if err == nil {
					time.Sleep(hold)
					err = unlock()
					result.Acquired[i]++
				}
				mu.Lock()
				result.Worst = max(result.Worst, waited)
				if err != nil && ctx.Err() == nil && result.Failed == "" {
					result.Failed = err.Error()
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return result
}

// contenderRole is a process that contends: the address, who, how many goroutines, how long to hold, how long to go on.
func contenderRole(p *redistest.Parent, args []string) error {
	goroutines, _ := strconv.Atoi(args[2])
	hold, _ := time.ParseDuration(args[3])
	runs, _ := time.ParseDuration(args[4])
	l, err := find(args[1]).open(args[0], 10*time.Millisecond)
	if err != nil {
		return err
	}
	defer l.Close()
	unlock, err := l.Lock(context.Background(), "warm") // connections and scripts are there
	if err == nil {
		err = unlock()
	}
	if err != nil {
		return err
	}
	p.Say("ready")
	p.Next()
	said, err := json.Marshal(contend(l, goroutines, hold, runs))
	p.Say("result %s", said)
	return err
}

// contention has two processes contend for one lock and returns what they counted together, and the commands they sent.
func contention(t testing.TB, c contender, goroutines int, hold, runs time.Duration) (sum crowd, sent int64) {
	t.Helper()
	s := redistest.Start(t)
	var children []*redistest.ChildProcess
	for range 2 {
		child := redistest.Child(t, "contender", s.Addr(), c.name, strconv.Itoa(goroutines), hold.String(), runs.String())
		child.Expect("ready")
		children = append(children, child)
	}
	before := c.sent(s)
	for _, child := range children {
		child.Send("go")
	}
	for _, child := range children {
		var one crowd
		if err := json.Unmarshal([]byte(strings.TrimSpace(child.Expect("result "))), &one); err != nil {
			t.Fatal(err)
		}
		sum.Acquired = append(sum.Acquired, one.Acquired...)
		sum.Worst = max(sum.Worst, one.Worst)
		if one.Failed != "" {
			t.Errorf("%s: %s", c.name, one.Failed)
		}
	}
	return sum, c.sent(s) - before
}

// sent is how many commands clients have sent that have to do with locks.
func (c contender) sent(s *redistest.Server) (n int64) {
	for _, command := range c.sends {
		n += s.Calls(command)
	}
	return n
}

// A herd is what happened to many who waited for one lock.
type herd struct {
	acquired      int
	took          time.Duration // until the last was served, or the patience was over
	gap           time.Duration // the longest in which nobody was
	sent          int64
	subscriptions int64 // of all clients
}

// waiters has so many wait for one lock, spread over clients, then frees it; each gives it on at once.
func waiters(t testing.TB, c contender, n, clients int, patience time.Duration) (h herd) {
	t.Helper()
	s := redistest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lockers := make([]locker, clients)
	for i := range lockers {
		l, err := c.open(s.Addr(), 250*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		lockers[i] = l
		pairs(t, l, 1)
	}
	gate, err := lockers[0].Lock(t.Context(), "herd")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var began, last time.Time
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			unlock, err := lockers[i%clients].Lock(ctx, "herd")
			if err != nil {
				return // it was not served within the patience
			}
			now := time.Now()
			mu.Lock()
			h.acquired++
			h.gap = max(h.gap, now.Sub(last))
			last = now
			mu.Unlock()
			if err := unlock(); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(time.Duration(n) * 200 * time.Microsecond) // it does not matter if some come a little late
	h.subscriptions = subscriptions(t, s)
	before := c.sent(s)
	mu.Lock()
	began, last = time.Now(), time.Now()
	mu.Unlock()
	if err := gate(); err != nil {
		t.Error(err)
	}
	all.Wait()
	h.took, h.sent = last.Sub(began), c.sent(s)-before
	if h.acquired < n {
		h.took = time.Since(began)
	}
	return h
}

// subscriptions counts the connections that have subscribed to something.
func subscriptions(t testing.TB, s *redistest.Server) int64 {
	t.Helper()
	list, err := s.Client(t).Do(t.Context(), "CLIENT", "LIST", "TYPE", "PUBSUB").Text()
	if err != nil {
		t.Fatal(err)
	}
	return int64(strings.Count(list, "id="))
}

// jain is 1 if everybody got the same, and 1/n if one got everything.
func jain(counts []int) float64 {
	var sum, squares float64
	for _, c := range counts {
		sum += float64(c)
		squares += float64(c) * float64(c)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(counts)) * squares)
}

func total(counts []int) (sum int) {
	for _, c := range counts {
		sum += c
	}
	return sum
}

// at returns the time that a part p did not exceed.
func at(took []time.Duration, p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[int(p*float64(len(sorted)-1))]
}

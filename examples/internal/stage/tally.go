package stage

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/levee-go/levee/examples/internal/servers"
)

// A Refusal is an answer that turns a customer down, as it should: sold out, too frequent.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// A Tally is how customers were answered.
type Tally struct {
	Served, Refused, Failed int
	FirstFailure            string
	LastServed              time.Duration   // since the beginning
	Waits                   []time.Duration // of those served, in no order
	WaitsRefused            []time.Duration // of those refused
}

func (t *Tally) add(other Tally) {
	t.Served += other.Served
	t.Refused += other.Refused
	t.Failed += other.Failed
	t.LastServed = max(t.LastServed, other.LastServed)
	if t.FirstFailure == "" {
		t.FirstFailure = other.FirstFailure
	}
	t.Waits = append(t.Waits, other.Waits...)
	t.WaitsRefused = append(t.WaitsRefused, other.WaitsRefused...)
}

func (t *Tally) note(took time.Duration, err error) {
	var refusal Refusal
	switch {
	case err == nil:
		t.Served++
		t.Waits = append(t.Waits, took)
	case errors.As(err, &refusal):
		t.Refused++
		t.WaitsRefused = append(t.WaitsRefused, took)
	default:
		t.Failed++
		if t.FirstFailure == "" {
			t.FirstFailure = err.Error()
		}
	}
}

// Crowd sends n requests, numbered from 0, as many at a time as there are customers, and returns how they were answered: an error that is
// a Refusal counts as an answer, any other as a failure.
func Crowd(ctx context.Context, customers, n int, request func(ctx context.Context, i int) error) (tally Tally) {
	var mu sync.Mutex
	var crowd sync.WaitGroup
	numbers := make(chan int)
	opened := time.Now()
	for range customers {
		crowd.Go(func() {
			for i := range numbers {
				began := time.Now()
				err := request(ctx, i)
				mu.Lock()
				tally.note(time.Since(began), err)
				if err == nil {
					tally.LastServed = time.Since(opened)
				}
				mu.Unlock()
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	crowd.Wait()
	return tally
}

// Percentile returns the wait that a part p of the customers did not exceed.
func Percentile(waits []time.Duration, p float64) time.Duration {
	if len(waits) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(waits))
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

// Think stands for what a request does besides asking the database: it takes d, or until ctx ends.
func Think(ctx context.Context, d time.Duration) error { return servers.Sleep(ctx, d) }

package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// An op is what a client did: it took the lock and got a fence, or gave it back.
type op struct {
	who    int
	unlock bool
}

// A mutexState is what a mutex with fences is: who has it, and the last fence.
type mutexState struct {
	who   int // -1: nobody
	fence int64
}

var mutexModel = porcupine.Model{
	Init: func() any { return mutexState{who: -1} },
	Step: func(state, input, output any) (bool, any) {
		s, o, fence := state.(mutexState), input.(op), output.(int64)
		if o.unlock {
			return s.who == o.who && s.fence == fence, mutexState{-1, s.fence}
		}
		return s.who == -1 && fence > s.fence, mutexState{o.who, fence}
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(input, output any) string { return fmt.Sprint(input, output) },
}

// A mutex is what its history says. taker is how a client takes and gives back.
type taker func(ctx context.Context, who int) (fence int64, unlock func() error, err error)

// errDied is what the unlock of a client says that is no more: its lease ends some time.
var errDied = errors.New("it died")

func history(t *testing.T, clients, rounds int, take taker) (result porcupine.CheckResult, n int) {
	var mu sync.Mutex
	var ops []porcupine.Operation
	begin := time.Now()
	record := func(o op, call, end time.Duration, fence int64) {
		mu.Lock()
		defer mu.Unlock()
		ops = append(ops, porcupine.Operation{ClientId: o.who, Input: o, Call: int64(call), Output: fence, Return: int64(end)})
	}
	var all sync.WaitGroup
	for who := range clients {
		all.Go(func() {
			for range rounds {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				if rand.IntN(5) == 0 { // many give up
					cancel()
					ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rand.IntN(2000))*time.Microsecond)
				}
				call := time.Since(begin)
				fence, unlock, err := take(ctx, who)
				cancel()
				if err != nil {
					continue // whether it had the lock for a moment, nobody has seen
				}
				record(op{who, false}, call, time.Since(begin), fence)
				call = time.Since(begin)
				end := time.Duration(0)
				if err := unlock(); errors.Is(err, lock.ErrUnavailable) || errors.Is(err, errDied) {
					end = time.Hour // it goes on in the background, or waits for its end
				} else if err != nil {
					t.Errorf("Unlock: %v", err)
				}
				record(op{who, true}, call, max(end, time.Since(begin)), fence)
			}
		})
	}
	all.Wait()
	result, _ = porcupine.CheckOperationsVerbose(mutexModel, ops, time.Minute)
	return result, len(ops)
}

func TestHistoriesAreThoseOfAMutexWithFences(t *testing.T) {
	histories(t, 4, 30)
}

// histories checks so many histories of 8 clients with faults, and their rounds. Three of
// them share each of two processes, and hand the lock on. It returns how many operations
// they had.
func histories(t *testing.T, n, rounds int) (total int) {
	s := redistest.Start(t)
	for h := range n {
		p := redistest.Proxy(t, s.Addr())
		p.Delay(time.Duration(rand.IntN(3)) * 200 * time.Microsecond)
		long := lock.Options{Lease: time.Minute} // on a machine with other work to do, too
		lockers := []*lock.Locker{
			open(t, p.Client(t, quick), long), open(t, p.Client(t, quick), long),
			open(t, s.Client(t, quick), long), open(t, s.Client(t, quick), lock.Options{Lease: time.Minute, StrictFIFO: true}),
		}
		mortal := open(t, s.Client(t, quick), lock.Options{Lease: lock.MinLease, NoRenewal: true})
		stop := make(chan struct{})
		var chaos sync.WaitGroup
		chaos.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(rand.IntN(120)) * time.Millisecond):
				}
				switch rand.IntN(4) {
				case 0:
					p.CutReplies(1, "EVALSHA")
				case 1:
					p.DropReplies(1, "EVALSHA")
				case 2:
					p.Cut()
				case 3:
					s.Stop()
					time.Sleep(5 * time.Millisecond)
					s.Cont()
				}
			}
		})
		result, ops := history(t, 8, rounds, func(ctx context.Context, who int) (int64, func() error, error) {
			l := lockers[[]int{0, 0, 0, 1, 1, 1, 2, 3}[who]]
			dies := rand.IntN(200) == 0
			if dies {
				l = mortal
			}
			lease, err := l.Lock(ctx, fmt.Sprint("lock", h))
			if err != nil {
				return 0, nil, err
			}
			if dies {
				return lease.Fence(), func() error { return errDied }, nil
			}
			return lease.Fence(), func() error { return lease.Unlock(context.Background()) }, nil
		})
		close(stop)
		chaos.Wait()
		if result != porcupine.Ok {
			t.Fatalf("history %d is %v", h, result)
		}
		total += ops
		for _, l := range append(lockers, mortal) {
			_ = l.Close()
		}
	}
	return total
}

// The recipe with SETNX and a plain DEL, and fences from INCR: the check sees it.
func TestAHistoryOfTheNaiveRecipeIsNotThatOfAMutex(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	result, _ := history(t, 8, 60, func(ctx context.Context, _ int) (int64, func() error, error) {
		for ctx.Err() == nil {
			if rdb.SetNX(ctx, "naive", "locked", 2*time.Millisecond).Val() {
				fence := rdb.Incr(ctx, "fence").Val()
				return fence, func() error {
					time.Sleep(time.Duration(rand.IntN(4)) * time.Millisecond)
					return rdb.Del(context.Background(), "naive").Err()
				}, nil
			}
			time.Sleep(100 * time.Microsecond)
		}
		return 0, nil, redis.Nil
	})
	if result != porcupine.Illegal {
		t.Errorf("it is %v: the check has no teeth", result)
	}
}

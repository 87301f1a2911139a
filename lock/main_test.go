package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

func TestMain(m *testing.M) {
	redistest.Main(m, redistest.Roles{"holder": holder, "worker": worker, "seller": seller, "permits": permits, "leases": leases})
}

// slack is what a bound in real time has on top of what it is about, for a machine
// that has other work to do. What the bound is there to catch takes longer by far:
// mostly until a lease ends, which is long for that.
const slack = 5 * time.Second

// open makes a Locker that is closed with the test.
func open(t testing.TB, rdb redis.UniversalClient, o lock.Options) *lock.Locker {
	t.Helper()
	l, err := lock.New(rdb, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func must(t testing.TB) func(*lock.Lease, error) *lock.Lease {
	return func(l *lock.Lease, err error) *lock.Lease {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
}

// inTime takes a lease that is short: on a busy machine the answer may take longer.
func inTime(t testing.TB, take func() (*lock.Lease, error)) *lock.Lease {
	t.Helper()
	return must(t)(untilAvailable(take))
}

// untilAvailable takes a lease again while Redis does not answer, for a minute.
func untilAvailable(take func() (*lock.Lease, error)) (*lock.Lease, error) {
	for end := time.Now().Add(time.Minute); ; {
		lease, err := take()
		if !errors.Is(err, lock.ErrUnavailable) || !time.Now().Before(end) {
			return lease, err
		}
	}
}

func unlock(t testing.TB, leases ...*lock.Lease) {
	t.Helper()
	for _, l := range leases {
		if err := l.Unlock(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// waiting waits until so many entries stand in the queue of a lock.
func waiting(t *testing.T, l *lock.Locker, kind keys.LockKind, name string, n int) {
	t.Helper()
	redistest.Eventually(t, 30*time.Second, fmt.Sprint(n, " wait"), func() bool {
		waiting, err := l.Waiting(context.Background(), kind, name)
		return err == nil && waiting == n
	})
}

// child makes what a child process works with.
func child(addr string, o lock.Options) (*redis.Client, *lock.Locker, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, DisableIdentity: true})
	o.Logger = slog.New(slog.DiscardHandler) // they lose leases by design
	l, err := lock.New(rdb, o)
	return rdb, l, err
}

// holder takes a lock, with so many waiters behind, says so and stays. With a fourth
// argument each waiter has a place of its own in the queue.
func holder(p *redistest.Parent, args []string) error {
	lease, _ := time.ParseDuration(args[1])
	waiters, _ := strconv.Atoi(args[2])
	rdb, l, err := child(args[0], lock.Options{Lease: lease, StrictFIFO: len(args) > 3})
	if err != nil {
		return err
	}
	defer rdb.Close()
	defer l.Close()
	for range waiters {
		go func() { _ = l.Do(context.Background(), "a", func(context.Context, *lock.Lease) error { return nil }) }()
	}
	if waiters == 0 {
		held, err := l.Lock(context.Background(), "a")
		for errors.Is(err, lock.ErrUnavailable) { // a process that has just begun may be slower than its lease is long
			held, err = l.Lock(context.Background(), "a")
		}
		if err != nil {
			return err
		}
		p.Pause("held")
		return held.Unlock(context.Background())
	}
	p.Pause("waiting")
	return nil
}

// permits takes so many permits of a semaphore of 4, says so and waits.
func permits(p *redistest.Parent, args []string) error {
	lease, _ := time.ParseDuration(args[1])
	n, _ := strconv.Atoi(args[2])
	rdb, l, err := child(args[0], lock.Options{Lease: lease})
	if err != nil {
		return err
	}
	defer rdb.Close()
	defer l.Close() // gives them back
	for range n {
		_, err := l.Semaphore("a", 4).Acquire(context.Background())
		for errors.Is(err, lock.ErrUnavailable) {
			_, err = l.Semaphore("a", 4).Acquire(context.Background())
		}
		if err != nil {
			return err
		}
	}
	p.Pause("held")
	return nil
}

// worker writes its fence to a register under the lock, for as long as it may: it
// tests its context before each write, as careful code does. The register refuses
// an older fence, and counts what it refused; "stale" counts what a register
// without fences would have taken.
func worker(p *redistest.Parent, args []string) error {
	lease, _ := time.ParseDuration(args[1])
	rdb, l, err := child(args[0], lock.Options{Lease: lease, Label: args[2]})
	if err != nil {
		return err
	}
	defer rdb.Close()
	defer l.Close()
	writes, err := strconv.Atoi(args[3]) // in each turn
	if err != nil {
		return err
	}
	p.Say("ready")
	const callers = 3 // who hand the lock on among themselves
	errs := make(chan error, callers)
	for range callers {
		go func() { errs <- work(p, rdb, l, writes) }()
	}
	for range callers {
		err = errors.Join(err, <-errs)
	}
	return err
}

func work(p *redistest.Parent, rdb *redis.Client, l *lock.Locker, writes int) error {
	ctx := context.Background()
	for stop := false; !stop; {
		err := l.Do(ctx, "a", func(held context.Context, s *lock.Lease) error {
			for range writes {
				if held.Err() != nil {
					return nil
				}
				// A pause strikes between the look and the write.
				time.Sleep(2 * time.Millisecond)
				taken, err := register.Run(ctx, rdb, []string{"register"}, s.Fence()).Int()
				if err != nil {
					return err
				}
				if taken == 0 && s.Err() == nil {
					return errOverlap
				}
			}
			return nil
		})
		if errors.Is(err, errOverlap) {
			return err
		}
		if err != nil {
			p.Say("error %v", err)
		}
		stop = rdb.Exists(ctx, "stop").Val() == 1
	}
	return nil
}

var errOverlap = errors.New("it believes to hold what a later holder has written under")

var register = redis.NewScript(`
local last = tonumber(redis.call('HGET', KEYS[1], 'fence') or 0)
local fence = tonumber(ARGV[1])
redis.call('HINCRBY', KEYS[1], 'writes', 1)
if fence < last then
  redis.call('HINCRBY', KEYS[1], 'refused', 1)
  return 0
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return 1`)

// seller sells until nothing is left: reads, checks, writes back.
func seller(p *redistest.Parent, args []string) error {
	rdb, l, err := child(args[0], lock.Options{Lease: 20 * time.Second}) // none is lost on a busy machine
	if err != nil {
		return err
	}
	defer rdb.Close()
	defer l.Close()
	ctx := context.Background()
	sell := func(context.Context, *lock.Lease) error {
		n, err := rdb.Get(ctx, "stock").Int()
		if err != nil || n <= 0 {
			return err
		}
		rdb.Set(ctx, "stock", n-1, 0)
		rdb.Incr(ctx, "sold")
		return nil
	}
	done := make(chan error)
	const buyers = 25
	p.Pause("ready")
	for range buyers {
		go func() {
			var err error
			for err == nil {
				if args[1] == "naive" { // lease and owner forgotten: the mutex of one process
					err = sell(ctx, nil)
				} else {
					err = l.Do(ctx, "stock", sell)
				}
				if n, _ := rdb.Get(ctx, "stock").Int(); n <= 0 {
					break
				}
			}
			done <- err
		}()
	}
	for range buyers {
		if err := <-done; err != nil {
			return fmt.Errorf("seller: %w", err)
		}
	}
	return nil
}

package lock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

// A witness sees the renewals that one Locker sends, and whether one that was sent
// after the lock had been given back was granted. That Locker holds one at a time.
type witness struct {
	gone          atomic.Int64 // the number of the last owner that has released
	renewals      atomic.Int64
	late, revived atomic.Int64
}

func (w *witness) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (w *witness) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (w *witness) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		if len(args) < 9 || args[1] != renewScript.Hash() {
			return next(ctx, cmd)
		}
		owner, _ := args[8].(string) // after four keys and the mode
		n, err := strconv.ParseInt(owner[strings.LastIndexByte(owner, ':')+1:], 36, 64)
		if err != nil {
			return fmt.Errorf("this is no owner: %q", owner)
		}
		w.renewals.Add(1)
		late := n <= w.gone.Load()
		err = next(ctx, cmd)
		if late {
			w.late.Add(1)
		}
		if answer, ok := cmd.(*redis.Cmd).Val().([]any); late && ok && answer[0] == "ok" {
			w.revived.Add(1)
		}
		return err
	}
}

// A renewal that is under way when the lock is given back must not bring it to life
// again, nor go on for ever. A million times the first renewal is due just then.
func TestChaosUnlocksRaceRenewals(t *testing.T) {
	more := quota(t, 1_000_000)
	s := redistest.Start(t)
	var total, renewals, late, revived atomic.Int64
	var all sync.WaitGroup
	for worker := range 8 {
		w := &witness{}
		rdb := s.Client(t)
		rdb.AddHook(w)
		l := open(t, rdb, Options{Lease: time.Minute})
		all.Go(func() {
			for i := 0; more(); i++ {
				lease, err := l.Lock(t.Context(), fmt.Sprint(worker))
				if err != nil {
					t.Error(err)
					return
				}
				before := w.renewals.Load()
				l.c.keeper.renewAll()                                                  // as if it was time
				for spins := 0; w.renewals.Load() == before && spins < 1000; spins++ { // until it is on its way
					runtime.Gosched()
				}
				for range i % 50 {
					runtime.Gosched()
				}
				if err := lease.Unlock(t.Context()); err != nil && !errors.Is(err, ErrUnavailable) {
					t.Error(err)
				}
				owner := lease.g.holds[0].owner
				n, _ := strconv.ParseInt(owner[strings.LastIndexByte(owner, ':')+1:], 36, 64)
				w.gone.Store(n)
				total.Add(1)
			}
			if n := l.c.kept(); n != 0 {
				t.Errorf("%d leases are still cared for", n)
			}
			_ = l.Close()
			renewals.Add(w.renewals.Load())
			late.Add(w.late.Load())
			revived.Add(w.revived.Load())
		})
	}
	all.Wait()
	t.Logf("%d unlocks, %d renewals raced them: %d were sent after the unlock, %d granted", total.Load(), renewals.Load(), late.Load(), revived.Load())
	if revived.Load() != 0 || renewals.Load() == 0 {
		t.Errorf("%d renewals, %d after the unlock", renewals.Load(), revived.Load())
	}
}

// leases holds so many leases until it is told to go, with a busy machine, and says
// how many it has lost.
func leases(p *redistest.Parent, args []string) error {
	n, _ := strconv.Atoi(args[1])
	var lost, renewed atomic.Int64
	rdb, l, err := child(args[0], Options{Hooks: Hooks{
		Lost: func(_ string, err error) {
			if !errors.Is(err, ErrClosed) {
				lost.Add(1)
			}
		},
		Renewed: func(_ string, _ time.Duration, err error) {
			if err == nil {
				renewed.Add(1)
			}
		},
	}})
	if err != nil {
		return err
	}
	defer rdb.Close()
	defer l.Close()
	var all sync.WaitGroup
	var failed atomic.Int64
	for w := range 8 {
		all.Go(func() {
			for i := w; i < n; i += 8 {
				if _, err := l.Lock(context.Background(), fmt.Sprint("many", i)); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	all.Wait()
	stop := make(chan struct{})
	for range max(runtime.GOMAXPROCS(0)/2, 1) { // half of the processors have other work
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	before := renewed.Load()
	p.Pause("held")
	p.Say("lost %d renewed %d failed %d", lost.Load(), renewed.Load()-before, failed.Load())
	close(stop)
	all.Wait()
	return nil
}

// Ten thousand leases of one process, which the machine stops for 200 ms every second
// and whose processors are busy: none is lost for that, and renewals are no more than
// one in a third of a lease.
func TestChaosManyLeasesAndPauses(t *testing.T) {
	d := redistest.Long(t)
	s := redistest.Start(t)
	const n = 10_000
	c := redistest.Child(t, "leases", s.Addr(), strconv.Itoa(n))
	c.Expect("at:held")
	renewals, begin := s.Calls("evalsha"), time.Now()
	pauses := 0
	for ; time.Since(begin) < d; pauses++ {
		time.Sleep(800 * time.Millisecond)
		c.Stop()
		time.Sleep(200 * time.Millisecond)
		c.Cont()
	}
	took := time.Since(begin)
	c.Go("held")
	said := c.Expect("lost ")
	each := float64(s.Calls("evalsha")-renewals) / took.Seconds()
	t.Logf("%d leases for %v with %d pauses: %.0f scripts a second; lost %s", n, took, pauses, each, said)
	if !strings.HasPrefix(said, "0 ") || !strings.HasSuffix(said, "failed 0") {
		t.Errorf("lost %s", said)
	}
	// One in T/3, and a sixtieth of T early, so that many share a round trip.
	if most := n / (10.0/3 - 10.0/60) * 1.02; each > most {
		t.Errorf("%.0f scripts a second, more than %.0f", each, most)
	}
}

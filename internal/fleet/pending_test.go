package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
)

// A pendingRig has the pending invalidations of a Redis that is a function.
type pendingRig struct {
	*testing.T
	*pending
	answer atomic.Pointer[func([]target) []error]
	waits  atomic.Int32                 // how often replicas were waited for
	nodes  map[string]*redisconn.Outage // by the first letter of an id; without one, the node is nil
	close  context.CancelFunc

	said  sync.Mutex // guards tries: rounds of several nodes run at once
	tries []string   // the attempts: of each the ids with their holds
}

func withPending(t *testing.T, test func(r *pendingRig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &pendingRig{T: t, nodes: map[string]*redisconn.Outage{}}
		var ctx context.Context
		ctx, r.close = context.WithCancel(t.Context())
		r.pending = newPending(ctx, logonce.New(slog.New(slog.DiscardHandler), ""), maxPending, r)
		r.redis(func([]target) error { return nil })
		test(r)
		r.close()
		r.pending.close()
	})
}

// redis gives all targets of an attempt the same answer.
func (r *pendingRig) redis(drop func([]target) error) {
	r.cluster(func(targets []target) []error { return allOf(targets, drop(targets)) })
}

func (r *pendingRig) cluster(drop func([]target) []error) { r.answer.Store(&drop) }

func (r *pendingRig) retry(_ context.Context, targets []target, _ bool) []error {
	r.said.Lock()
	r.tries = append(r.tries, fmt.Sprint(targets))
	r.said.Unlock()
	return (*r.answer.Load())(targets)
}

// tried returns the attempts since it was asked last.
func (r *pendingRig) tried() []string {
	r.said.Lock()
	defer r.said.Unlock()
	tries := r.tries
	r.tries = nil
	return tries
}

func (r *pendingRig) nodeOf(t target) *redisconn.Outage { return r.nodes[(t.id + "*")[:1]] }

func (r *pendingRig) tryReplicas(context.Context) error {
	r.waits.Add(1)
	return (*r.answer.Load())([]target{{id: "none"}})[0]
}

func (r *pendingRig) add(targets []target, err error) { r.pending.add(targets, allOf(targets, err)) }

func (r *pendingRig) settle(targets []target, began uint64, err error) {
	r.pending.settle(targets, began, allOf(targets, err))
}

func allOf(targets []target, err error) []error { return slices.Repeat([]error{err}, len(targets)) }

var errDown = errors.New("down")

// pass lets time pass, and what is due by then be done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func targets(from, to int) (all []target) {
	for i := from; i < to; i++ {
		all = append(all, target{id: strconv.Itoa(i)})
	}
	return all
}

// The attempt may have come before the write that was to be invalidated meanwhile.
// If its success were taken for that, the value that was published in between would
// answer.
func TestAConfirmationDoesNotCoverWhatWasAskedForMeanwhile(t *testing.T) {
	withPending(t, func(r *pendingRig) {
		x := []target{{id: "x"}}
		var attempts atomic.Int32
		r.redis(func([]target) error {
			if attempts.Add(1) == 1 {
				r.add(x, errDown) // by a writer, while the attempt is under way
			}
			time.Sleep(time.Second)
			return nil
		})
		r.add(x, errDown)
		began := r.now()
		r.add(x, errDown)
		r.settle(x, began, nil)
		if !r.blocks("x") {
			r.Error("a writer's confirmation covered another's, which was asked for later")
		}
		pass(1500 * time.Millisecond)
		if n := attempts.Load(); n != 2 || !r.blocks("x") {
			r.Errorf("after the first of %d attempts the id is used again", n)
		}
		pass(time.Second)
		if n := attempts.Load(); n != 2 || r.blocks("x") || r.length() != 0 {
			r.Errorf("after the second of %d attempts the id is not used again", n)
		}
	})
}

func TestWhatIsAskedForTwiceIsPendingOnce(t *testing.T) {
	withPending(t, func(r *pendingRig) {
		r.redis(func([]target) error { return errDown })
		for range 100 {
			r.add([]target{{id: "x"}, {id: "y"}, {id: "x", lift: "a"}}, errDown)
		}
		if r.length() != 2 {
			r.Errorf("%d wait, want 2", r.length())
		}
		r.settle([]target{{id: "x", lift: "a"}}, r.now(), nil)
		if r.blocks("x") || !r.blocks("y") || r.length() != 1 {
			r.Errorf("%d wait", r.length())
		}
	})
}

// A Write ends with a hold of its own to lift. If each were a request of its own, the Writes of one
// row would take the room of all others.
func TestTheWritesOfOneRowHaveOnePlace(t *testing.T) {
	withPending(t, func(r *pendingRig) {
		r.redis(func([]target) error { return errDown })
		for i := range 11_000 {
			r.add([]target{{id: "x", lift: fmt.Sprint("hold", i)}}, errDown)
		}
		r.add([]target{{id: "y"}}, errDown)
		if r.length() != 2 || r.blocks("z") {
			r.Errorf("%d places, want 2; an id that nobody wrote is blocked: %v", r.length(), r.blocks("z"))
		}
		if holds := len(r.places[target{id: "x"}].lifts); holds > maxLifts {
			r.Errorf("the place of x has grown to %d holds", holds)
		}
		r.redis(func([]target) error { return nil })
		pass(2 * time.Second)
		if r.length() != 0 || r.blocks("x") || r.retried.Load() != 11_001 {
			r.Errorf("%d places, %d were confirmed", r.length(), r.retried.Load())
		}
	})
}

// A hold that nobody lifts keeps its key closed: an invalidation alone does not end
// the wait.
func TestAnInvalidationDoesNotStandForALift(t *testing.T) {
	withPending(t, func(r *pendingRig) {
		r.redis(func([]target) error { return errDown })
		r.add([]target{{id: "x", lift: "a"}}, errDown)
		r.add([]target{{id: "x", lift: "b"}}, errDown)
		r.settle([]target{{id: "x"}}, r.now(), nil)
		if r.length() != 1 || r.blocks("x") {
			r.Errorf("%d places, and x is blocked: %v, though a later invalidation is confirmed", r.length(), r.blocks("x"))
		}
		r.settle([]target{{id: "x", lift: "a"}}, r.now(), nil)
		if r.length() != 1 {
			r.Error("the other hold is forgotten")
		}
		r.redis(func([]target) error { return nil })
		r.tried()
		pass(2 * time.Second)
		if tried := r.tried(); fmt.Sprint(tried) != "[[{x b false}]]" || r.length() != 0 {
			r.Errorf("tried %q, want the hold that is left", tried)
		}
	})
}

// No id is forgotten: a Clear ends the values of all of them.
func TestTooManyPendingBecomeOneClear(t *testing.T) {
	withPending(t, func(r *pendingRig) {
		r.redis(func([]target) error { return errDown })
		r.limit = 1000
		r.add(targets(0, 1000), errDown)
		if r.blocks("other") {
			r.Error("with room for all, others are blocked")
		}
		r.add(targets(500, 1000), errDown) // they wait already
		r.add(targets(1000, 1500), errDown)
		if r.length() != 501 || r.dropped.Load() != 0 || !r.blocks("0") || !r.blocks("1400") || !r.blocks("other") {
			r.Errorf("%d places, want a Clear and 500; %d were dropped, all are blocked: %v", r.length(), r.dropped.Load(), r.blocks("other"))
		}
		r.redis(func([]target) error { return nil })
		r.tried()
		pass(2 * time.Second)
		if tried := r.tried(); fmt.Sprint(tried) != "[[{  true}]]" {
			r.Errorf("tried %q, want a Clear and nothing else", tried)
		}
		if r.blocks("0") || r.blocks("other") || r.length() != 0 || r.retried.Load() != 2000 {
			r.Errorf("%d places, %d were confirmed", r.length(), r.retried.Load())
		}
	})
}

// What is asked for while the Clear is under way may have been written after it.
func TestTheClearDoesNotStandForWhatCameAfterIt(t *testing.T) {
	withPending(t, func(r *pendingRig) {
		r.redis(func([]target) error { return errDown })
		r.limit = 10
		r.add(targets(0, 11), errDown)
		r.redis(func(targets []target) error {
			if targets[0].clear {
				r.add([]target{{id: "x"}}, errDown)
			}
			return nil
		})
		r.tried()
		pass(2 * time.Second)
		if tried := r.tried(); fmt.Sprint(tried) != "[[{  true}] [{x  false}]]" || r.length() != 0 {
			r.Errorf("tried %q", tried)
		}
	})
}

// Somebody else's key where the epoch belongs keeps Redis from a Clear. One that was asked for
// blocks nothing then. One that stands for invalidations goes on to: their values are still there.
func TestAClearInPlaceOfInvalidationsBlocksWhateverStandsInItsWay(t *testing.T) {
	withPending(t, func(r *pendingRig) {
		r.redis(func(targets []target) error { return errForeign })
		r.limit = 10
		r.add([]target{everything}, errForeign)
		if r.blocks("x") {
			r.Error("a Clear that was asked for blocks")
		}
		r.add(targets(0, 10), errDown)
		pass(time.Hour)
		if !r.blocks("0") || !r.blocks("x") {
			r.Error("old values are served")
		}
		r.redis(func([]target) error { return nil })
		pass(2 * time.Second)
		if r.blocks("0") || r.length() != 0 {
			r.Errorf("the key has gone, and %d are pending", r.length())
		}
	})
}

// An invalidation that fails is tried alone and ever more seldom: others would fail as
// well, and each attempt may drop a value that has been published since.
func TestAttemptsAreFewWhileTheyFail(t *testing.T) {
	withPending(t, func(r *pendingRig) {
		var sizes []int
		down := func(targets []target) error { sizes = append(sizes, len(targets)); return errDown }
		up := func(targets []target) error { sizes = append(sizes, len(targets)); return nil }
		went := func() (was []int) {
			synctest.Wait()
			was, sizes = sizes, nil
			return was
		}
		r.redis(down)
		r.add(targets(0, 1000), errDown)
		pass(time.Minute)
		if got := went(); len(got) < 45 || len(got) > 90 || slices.Max(got) != 1 {
			r.Errorf("attempts of %v in a minute", got)
		}
		left := 5
		r.redis(func(targets []target) error {
			if left--; left >= 0 {
				return up(targets)
			}
			return down(targets)
		})
		pass(time.Minute)
		if got := went(); fmt.Sprint(got[:6]) != "[1 2 4 8 16 32]" || slices.Max(got[6:]) != 1 {
			r.Errorf("attempts of %v", got)
		}
		r.redis(up)
		pass(1300 * time.Millisecond)
		if got := fmt.Sprint(went()); got != "[1 2 4 8 16 32 64 128 128 128 128 128 128 74]" {
			r.Errorf("attempts of %v", got)
		}
	})
}

// A value that the master has dropped is gone for its readers. Only a failover could
// bring it back. And nothing is dropped or cleared again and again while there are no replicas.
func TestMissingReplicasKeepNobodyFromRedis(t *testing.T) {
	withPending(t, func(r *pendingRig) {
		r.redis(func([]target) error { return errDown })
		short := redisconn.TooFew(0, 1)
		r.add([]target{{id: "x"}, everything}, short)
		r.add([]target{{id: "y"}}, errDown)
		if r.blocks("x") || !r.blocks("y") || r.length() != 3 {
			r.Errorf("blocks x: %v, y: %v", r.blocks("x"), r.blocks("y"))
		}
		r.add([]target{{id: "x"}}, errDown)
		if !r.blocks("x") {
			r.Error("the second time the master may not have done it either")
		}
		r.redis(func([]target) error { return short })
		r.tried()
		pass(10 * time.Second)
		if r.blocks("x") || r.blocks("y") || r.length() != 3 {
			r.Errorf("the master has done it: blocks x: %v, y: %v, %d wait", r.blocks("x"), r.blocks("y"), r.length())
		}
		if tried, waits := r.tried(), r.waits.Load(); len(tried) != 2 || waits < 5 || waits > 20 {
			r.Errorf("tried %q, and looked for replicas %d times in ten seconds", tried, waits)
		}
		r.redis(func([]target) error { return nil })
		pass(2 * time.Second)
		if r.length() != 0 {
			r.Errorf("%d wait", r.length())
		}
	})
}

// 491 of 500 ids were blocked ten seconds after Redis was back: an attempt that lacked nothing but
// replicas counted as a failure, after which the next one is of a single id and a second later.
func TestMissingReplicasDelayNobody(t *testing.T) {
	for _, n := range []int{500, 5000} {
		withPending(t, func(r *pendingRig) {
			r.redis(func([]target) error { return errDown })
			r.add(targets(0, n), errDown)
			pass(10 * time.Second)
			r.redis(func([]target) error { return redisconn.ErrTooFewReplicas })
			pass(2 * time.Second)
			if r.blocked != 0 {
				r.Errorf("%d of %d ids are blocked two seconds after Redis is back", r.blocked, n)
			}
			r.add([]target{{id: "x"}}, errDown)
			pass(2 * time.Second)
			if r.blocks("x") || r.length() != n+1 {
				r.Errorf("x is blocked: %v, and %d wait for replicas, want %d", r.blocks("x"), r.length(), n+1)
			}
		})
	}
}

// The replica that has become the master may know nothing of what the last one had done.
func TestAFailureHasWhatWaitsForReplicasBeDoneAgain(t *testing.T) {
	withPending(t, func(r *pendingRig) {
		r.redis(func([]target) error { return redisconn.ErrTooFewReplicas })
		r.add(targets(0, 1), redisconn.ErrTooFewReplicas)
		pass(10 * time.Second)
		r.redis(func([]target) error { return errDown })
		pass(10 * time.Second)
		r.redis(func([]target) error { return redisconn.ErrTooFewReplicas }) // of the new master
		r.tried()
		pass(10 * time.Second)
		if tried := r.tried(); fmt.Sprint(tried) != "[[{0  false}]]" || r.blocks("0") {
			r.Errorf("tried %q, want it once", tried)
		}
	})
}

// What waits for replicas may have no room either. It becomes a Clear, which waits for them too: to
// clear the cache again and again while they are away would cost more than what it is for.
func TestManyThatWaitForReplicasBecomeAClearThatWaitsToo(t *testing.T) {
	withPending(t, func(r *pendingRig) {
		r.limit = 10
		r.redis(func([]target) error { return redisconn.ErrTooFewReplicas })
		for i := range 100 {
			r.add(targets(i, i+1), redisconn.ErrTooFewReplicas)
			pass(time.Second)
		}
		if tried := r.tried(); len(tried) > 0 || r.blocks("0") || r.length() > 10 || r.dropped.Load() != 0 {
			r.Errorf("tried %q, %d places, all are blocked: %v", tried, r.length(), r.blocks("0"))
		}
		r.add([]target{{id: "x"}}, errDown)
		if !r.blocks("x") || r.blocks("y") {
			r.Errorf("x is blocked: %v, and y, which nobody asked for: %v", r.blocks("x"), r.blocks("y"))
		}
		r.redis(func([]target) error { return nil })
		pass(2 * time.Second)
		if tried := r.tried(); fmt.Sprint(tried) != "[[{x  false}] [{  true}]]" || r.length() != 0 {
			r.Errorf("tried %q, %d are pending", tried, r.length())
		}
	})
}

func TestCloseTriesOnceMoreAndGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		takes   time.Duration
		err     error
		within  time.Duration
		dropped uint64
	}{
		"refused":  {0, errDown, 0, 1000},
		"hanging":  {100 * time.Millisecond, errDown, 100 * time.Millisecond, 1000},
		"back":     {time.Millisecond, nil, 14 * time.Millisecond, 0},
		"too slow": {400 * time.Millisecond, nil, 1200 * time.Millisecond, 1000 - 7},
	} {
		t.Run(name, func(t *testing.T) {
			withPending(t, func(r *pendingRig) {
				var lines strings.Builder
				r.log = logonce.New(slog.New(slog.NewTextHandler(&lines, nil)), "")
				r.redis(func([]target) error { return errDown })
				r.add(targets(0, 1000), errDown)
				pass(10 * time.Second)
				r.redis(func([]target) error { time.Sleep(c.takes); return c.err })
				r.close()
				began := time.Now()
				r.pending.close()
				if took := time.Since(began); took > c.within || r.dropped.Load() != c.dropped {
					r.Errorf("it took %v and dropped %d", took, r.dropped.Load())
				}
				if said := strings.Contains(lines.String(), fmt.Sprintf("invalidations=%d event=invalidations_dropped\n", c.dropped)); said != (c.dropped > 0) {
					r.Errorf("the log says %s", &lines)
				}
				r.add(targets(0, 1), errDown)
				if r.length() != 0 || r.dropped.Load() != c.dropped+1 {
					r.Error("after Close something waits that nobody will try")
				}
			})
		})
	}
}

// A cluster whose node a is dead.
//
// Catches retries of which each may meet an id of the dead node: the more of the healthy ones
// are confirmed, the rarer is an attempt without one, and the last wait for minutes.
func TestADeadNodeKeepsNothingOfTheOthersPending(t *testing.T) {
	withPending(t, func(r *pendingRig) {
		r.nodes["a"], r.nodes["b"] = &redisconn.Outage{}, &redisconn.Outage{}
		r.cluster(func(targets []target) (errs []error) {
			for _, t := range targets {
				if t.id[0] == 'a' {
					time.Sleep(100 * time.Millisecond)
					errs = append(errs, errDown)
				} else {
					errs = append(errs, nil)
				}
			}
			return errs
		})
		for i := range 1000 {
			r.add([]target{{id: fmt.Sprint("a", i)}, {id: fmt.Sprint("b", i)}}, errDown)
		}
		pass(2 * time.Second)
		if n := r.length(); n != 1000 || !r.blocks("a0") || r.blocks("b0") {
			r.Errorf("%d are pending after two seconds, and the dead node has 1000", n)
		}
	})
}

// The nodes of a cluster may not be known yet when an invalidation fails, and slots move.
//
// Catches an invalidation that is tried with those of the node that had it once.
func TestAnInvalidationIsTriedWithThoseOfItsPresentNode(t *testing.T) {
	withPending(t, func(r *pendingRig) {
		r.redis(func([]target) error { return errDown })
		for i := range 1000 {
			r.add([]target{{id: fmt.Sprint("a", i)}, {id: fmt.Sprint("b", i)}}, errDown)
		}
		r.cluster(func(targets []target) (errs []error) {
			for _, t := range targets {
				errs = append(errs, map[bool]error{true: errDown}[t.id[0] == 'a'])
			}
			return errs
		})
		r.mu.Lock()
		r.nodes["a"], r.nodes["b"] = &redisconn.Outage{}, &redisconn.Outage{}
		r.mu.Unlock()
		pass(3 * time.Second)
		if n := r.length(); n != 1000 || r.blocks("b0") {
			r.Errorf("%d are pending after three seconds, and the dead node has 1000", n)
		}
	})
}

package lock_test

import (
	"errors"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// Fences grow whatever the server's clock does: a fence that was its time alone
// would fall with it.
func TestFencesGrowOverStepsOfTheServersClock(t *testing.T) {
	s, shift := redistest.StartShifted(t)
	l := open(t, s.Client(t), lock.Options{})
	var last int64
	for _, step := range []time.Duration{0, 20 * time.Second, -20 * time.Second, time.Hour, 0, -time.Hour, 5 * time.Minute, -time.Minute} {
		shift(step)
		for range 3 {
			lease := must(t)(l.Lock(t.Context(), "a"))
			if lease.Fence() <= last {
				t.Errorf("clock at %v: fence %d after %d", step, lease.Fence(), last)
			}
			last = lease.Fence()
			unlock(t, lease)
		}
	}
}

// The end of a dead holder's lease is on the server's clock. Set back by an hour it
// would keep the others out for an hour, as a native TTL does, were it not
// bounded by the lease's length.
func TestAServersClockThatStepsBackFreesTheDeadInTime(t *testing.T) {
	s, shift := redistest.StartShifted(t)
	const lease = time.Second
	dead := open(t, s.Client(t), lock.Options{Lease: lease, NoRenewal: true})
	alive := open(t, s.Client(t), lock.Options{Lease: 6 * time.Second})
	next := open(t, s.Client(t), lock.Options{})
	redistest.Eventually(t, 30*time.Second, "the subscription stands, and nothing is checked again", alive.Hears)
	for _, step := range []time.Duration{-20 * time.Second, -time.Hour} {
		shift(0)
		inTime(t, func() (*lock.Lease, error) { return dead.Lock(t.Context(), "a") })
		living := must(t)(alive.Lock(t.Context(), "b"))
		begin := time.Now()
		shift(step)
		unlock(t, must(t)(next.Lock(t.Context(), "a")))
		took := time.Since(begin)
		t.Logf("clock set to %v: free after %v, with a lease of %v", step, took, lease)
		if took > lease+slack {
			t.Errorf("clock set to %v: it took %v", step, took)
		}
		before := alive.Stats().Renewals
		redistest.Eventually(t, 30*time.Second, "it is renewed, or lost", func() bool { return alive.Stats().Renewals > before || living.Err() != nil })
		if err := errors.Join(living.Err(), living.Check(t.Context())); err != nil {
			t.Errorf("clock set to %v: the living holder: %v", step, err)
		}
		unlock(t, living)
	}
}

// A step forward ends leases on the server early, and nothing can prevent it. The
// holder hears of it with its next renewal, and the next holder's fence is larger.
func TestAServersClockThatStepsForwardIsReported(t *testing.T) {
	s, shift := redistest.StartShifted(t)
	const lease = 20 * time.Second
	l, other := open(t, s.Client(t), lock.Options{Lease: lease}), open(t, s.Client(t), lock.Options{})
	redistest.Eventually(t, 30*time.Second, "the subscription stands, and nothing is checked again", l.Hears)
	held := must(t)(l.Lock(t.Context(), "a"))
	begin := time.Now()
	shift(time.Minute)
	l.RenewAll()
	<-held.Context().Done()
	if took := time.Since(begin); took > lease/4 {
		t.Errorf("reported after %v", took)
	}
	if err := held.Err(); !errors.Is(err, lock.ErrLost) {
		t.Error(err)
	}
	next := must(t)(other.Lock(t.Context(), "a"))
	if next.Fence() <= held.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), held.Fence())
	}
	unlock(t, next)
}

// A server's clock that runs a tenth fast shortens each lease by a tenth, which
// its renewals bear.
func TestAFastClockOfTheServerLosesNothing(t *testing.T) {
	s, shift := redistest.StartShifted(t)
	l := open(t, s.Client(t), lock.Options{Lease: 3 * time.Second})
	held := must(t)(l.Lock(t.Context(), "a"))
	for begin := time.Now(); time.Since(begin) < 4*time.Second; time.Sleep(5 * time.Millisecond) {
		shift(time.Since(begin) / 10)
	}
	if err := errors.Join(held.Err(), held.Check(t.Context())); err != nil {
		t.Error(err)
	}
	unlock(t, held)
}

// setBack makes a time what it would be, had the wall clock been set forward by d
// since, or back by -d. There is no other way to a time.Time whose two clocks disagree.
func setBack(t *testing.T, at time.Time, d time.Duration) time.Time {
	t.Helper()
	moved := at
	*(*uint64)(unsafe.Pointer(&moved)) -= uint64(d/time.Second) << 30 // its seconds, when it has both clocks
	if moved.Sub(at) != 0 || at.Round(0).Sub(moved.Round(0)) != d {
		t.Skip("time.Time is laid out in another way")
	}
	return moved
}

// A holder that counted on its wall clock alone would believe for an hour longer
// that it has the lock when that is set back; one that counted on the monotonic
// clock alone would believe so after its machine was suspended.
func TestAStepOfTheHoldersClockDoesNotProlongItsLease(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const lease = time.Second
	l, other := open(t, s.Client(t), lock.Options{Lease: lease, NoRenewal: true}), open(t, s.Client(t), lock.Options{})
	for _, step := range []time.Duration{0, -time.Hour, time.Hour} {
		held := inTime(t, func() (*lock.Lease, error) { return l.Lock(t.Context(), "a") })
		held.Shift(func(at time.Time) time.Time { return setBack(t, at, step) })
		if remaining := held.Remaining(); remaining > lease || step > 0 && remaining != 0 {
			t.Fatalf("clock set by %v: %v remain", step, remaining)
		}
		next := must(t)(other.Lock(t.Context(), "a"))
		select {
		case <-held.Context().Done():
		case <-time.After(slack): // by the clock that was set back it is an hour
			t.Errorf("clock set by %v: another has the lock and the context stands", step)
		}
		if err := held.Err(); !errors.Is(err, lock.ErrExpired) {
			t.Errorf("clock set by %v: %v", step, err)
		}
		unlock(t, next)
	}
}

// A jump of the wall clock has the watchdog look at all leases, not only at the one
// that is due next: otherwise they live on after a suspension until their turn.
func TestAJumpOfTheHoldersClockIsNoticedForAllLeases(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := open(t, s.Client(t), lock.Options{Lease: time.Minute})
	first, second := must(t)(l.Lock(t.Context(), "a")), must(t)(l.Lock(t.Context(), "b"))
	now := time.Now()
	after := setBack(t, now, -time.Hour) // an hour later, by the wall clock
	if !lock.Jumped(now, after) || lock.Jumped(now, now.Add(time.Hour)) {
		t.Error("a jump is not told from time that passes")
	}
	l.Look(after)
	for _, lease := range []*lock.Lease{first, second} {
		if err := lease.Context().Err(); err == nil {
			t.Error("the lease stands")
		}
		if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrExpired) {
			t.Error(err)
		}
	}
}

// When the server's clock steps back, ends of leases written before lie further
// ahead than any lease is long. A dead holder would block the others for the step.
func TestAStepBackOfTheServersClockDoesNotProlongALease(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	dead := open(t, s.Client(t), lock.Options{Lease: time.Second, NoRenewal: true})
	l := open(t, s.Client(t), lock.Options{})
	hour := time.Now().Add(time.Hour).UnixMilli()

	inTime(t, func() (*lock.Lease, error) { return dead.Lock(ctx, "a") })
	rdb.HSet(ctx, keys.Lock("", keys.Mutex, "a")[0], "x", strconv.FormatInt(hour, 10))
	begin := time.Now()
	unlock(t, must(t)(l.Lock(ctx, "a")))
	inTime(t, func() (*lock.Lease, error) { return dead.RW("a").RLock(ctx) })
	shares := keys.Lock("", keys.ReadWrite, "a")[3]
	rdb.ZAdd(ctx, shares, redis.Z{Score: float64(hour), Member: rdb.ZRange(ctx, shares, 0, 0).Val()[0]})
	unlock(t, must(t)(l.RW("a").Lock(ctx)))
	if took := time.Since(begin); took > slack {
		t.Errorf("it took %v", took)
	}
}

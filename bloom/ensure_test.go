package bloom_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
)

// An id is deleted and inserted again, so the copy of its process holds it. The log does not get
// it, as Redis is silent, and the Rebuild of another process has scanned past its place.
func TestAnIdThatOnlyLooksHeldIsInTheResultOfARebuild(t *testing.T) {
	t.Parallel()
	for _, healsFirst := range []bool{true, false} {
		s := redistest.Start(t)
		p := redistest.Proxy(t, s.Addr())
		a, b := open(t, s.Client(t)), open(t, p.Client(t), quick)
		rebuild(t, a, 0, 1000)
		answers(t, b)
		half, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() { ended <- a.Rebuild(context.Background(), paused(500, 1000, half, goOn)) }()
		<-half
		p.Blackhole(true)
		if err := b.Ensure(t.Context(), idOf(7), idOf(8)); err != nil {
			t.Fatal(err)
		}
		if healsFirst {
			p.Blackhole(false)
		}
		close(goOn)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		denies(t, a, 0, 500, 0.02) // what is gone
		p.Blackhole(false)
		redistest.Eventually(t, 30*time.Second, "both know it", func() bool {
			if missing(b, 7, 9) > 0 {
				t.Fatal("denied where it was added")
			}
			return b.Stats().Loads > 1 && !b.Stats().Abstaining && missing(a, 7, 9) == 0
		})
	}
}

// Redis is silent for long: the first writers wait a little, and those after them do not.
func TestEnsureOfHeldIdsDoesNotWaitForASilentRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	f := open(t, p.Client(t), quick)
	rebuild(t, f, 0, 1000)
	p.Blackhole(true)
	redistest.Eventually(t, 30*time.Second, "it abstains", func() bool { return f.Stats().Abstaining })
	begun := time.Now()
	for range 200 {
		if err := f.Ensure(t.Context(), idOf(7)); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(begun); took > 10*time.Second { // 200 times 100 ms are 20 s
		t.Errorf("200 calls took %v", took)
	}
	if err := f.Ensure(t.Context(), idOf(7), "new"); !errors.Is(err, bloom.ErrUnavailable) {
		t.Errorf("of a new id: %v", err)
	}
	p.Blackhole(false)
	redistest.Eventually(t, 30*time.Second, "all are added", func() bool { return s.Calls("xadd") >= 200 })
}

// A process that has started without Redis holds nothing, so to it rows that exist are new.
func TestEnsureFailsInAProcessWithoutACopy(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a := open(t, s.Client(t), quick)
	rebuild(t, a, 0, 1000)
	p := redistest.Proxy(t, s.Addr())
	p.Refuse(true)
	f := open(t, p.Client(t), quick)
	if err := f.Ensure(t.Context(), idOf(7)); !errors.Is(err, bloom.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	p.Refuse(false)
	answers(t, f)
	p.Refuse(true)
	p.Cut()
	if err := f.Ensure(t.Context(), idOf(7)); err != nil {
		t.Errorf("with a copy: %v", err)
	}
}

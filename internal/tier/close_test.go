package tier_test

import (
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/internal/tier"
)

// Catches a Close that does not wait for callers: they panic with "send on closed
// channel", and the race detector objects.
func TestCloseLetsCallersFinish(t *testing.T) {
	t.Parallel()
	for range redistest.Pick(60, 1000) { // without callCounter.close it takes a few
		c, err := tier.New[int, int](tier.Options{MaxBytes: 64 << 10, MaxNullBytes: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var closed atomic.Bool
		for caller := range 32 {
			wg.Go(func() { useUntilClosed(t, c, &closed) })
			if caller == 16 {
				wg.Go(func() { c.Close(); closed.Store(true) })
			}
		}
		wg.Wait()
	}
}

// useUntilClosed calls everything in turn, and a little longer than closed says.
func useUntilClosed(t *testing.T, c *tier.Cache[int, int], closed *atomic.Bool) {
	for after := 0; after < 3; {
		late := closed.Load()
		if late {
			after++
		}
		for range 20 {
			key := rand.IntN(1000)
			id := strconv.Itoa(key)
			took, found := false, miss
			switch rand.IntN(8) {
			case 0:
				took = c.Fill(c.Mark(id), key, key, 8, time.Minute)
			case 1:
				took = c.Put(c.Mark(id), key, key, 8, time.Minute)
			case 2:
				took = c.FillNull(c.Mark(id), key, time.Minute)
			case 3:
				c.Delete(id)
			default:
				_, found = c.Get(key)
			}
			if late && (took || found != miss) {
				t.Errorf("a closed cache took a fill (%v) or found something (%v)", took, found)
			}
		}
		runtime.Gosched() // 32 of us that never pause would keep Close from its turn
	}
}

// Catches a Close that does not wait.
func TestCloseWaitsForTheCallersInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open[string, int](t, tier.Options{})
		leave := c.Enter()
		var closed sync.WaitGroup
		var returned atomic.Int32
		for range 3 {
			closed.Go(func() { c.Close(); returned.Add(1) })
		}
		time.Sleep(time.Second)
		if returned.Load() != 0 {
			t.Fatal("Close returned while a caller was inside")
		}
		want(t, c, "a", 0, miss) // later ones are turned away at once
		leave()
		closed.Wait()
	})
}

func TestAClosedCacheFindsAndTakesNothing(t *testing.T) {
	c := open[string, int](t, tier.Options{})
	c.Fill(c.Mark("a"), "a", 1, 8, time.Minute)
	c.FillNull(c.Mark("b"), "b", time.Minute)
	c.Settle()
	c.Close()
	want(t, c, "a", 0, miss)
	want(t, c, "b", 0, miss)
	if c.Fill(c.Mark("a"), "a", 1, 8, time.Minute) || c.FillNull(c.Mark("b"), "b", time.Minute) || c.Put(c.Mark("a"), "a", 1, 8, time.Minute) {
		t.Error("a closed cache took something")
	}
	c.Delete("a")
	c.Flush()
	c.Trust(false)
	c.Close()
}

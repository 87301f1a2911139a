package redlock_test

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
	"github.com/levee-go/levee/lock/redlock"
)

// Any two of five servers hang, die or have their clocks set, ten thousand
// acquisitions long. They keep what they know on disk: a server that has both
// forgotten and had its clock ahead could repeat a fence, which no client can know.
func TestChaosQuorum(t *testing.T) {
	more := redistest.Quota(t, 10_000)
	var nodes servers
	var shifts []func(time.Duration)
	for range 5 {
		s, shift := redistest.StartShifted(t, "--appendonly", "yes", "--appendfsync", "always")
		nodes, shifts = append(nodes, s), append(shifts, shift)
	}
	qs := []*redlock.Quorum{nodes.quorum(t, lock.Options{}), nodes.quorum(t, lock.Options{}), nodes.quorum(t, lock.Options{})}
	steps := []time.Duration{20 * time.Second, time.Hour, -20 * time.Second, -time.Hour}
	guard := nodes.quorum(t, lock.Options{})
	// A clock that is set forward ends the leases on its server, and a holder who has
	// but a majority may lose the lock by that, which nothing can prevent. So clocks are
	// set while nobody who counts has it; everything else happens at any time.
	setClock := func(n int, d time.Duration) {
		lease, err := guard.Lock(t.Context(), "a")
		for errors.Is(err, lock.ErrUnavailable) {
			lease, err = guard.Lock(t.Context(), "a")
		}
		if err != nil {
			t.Error(err)
			return
		}
		shifts[n](d)
		_ = lease.Unlock(t.Context())
	}
	faults := map[string]int{}
	var lost atomic.Int32
	var set []int // servers whose clocks are wrong
	total := contend(t, qs, more, func(int) {
		if len(set) > 0 { // to set a clock right is a step too: nothing else happens with it
			for _, n := range set {
				setClock(n, 0)
			}
			set = nil
			return
		}
		one := rand.IntN(len(nodes))
		two := (one + 1 + rand.IntN(len(nodes)-1)) % len(nodes)
		var heal []func()
		for _, n := range []int{one, two} {
			fault := []string{"kill", "stall", "clock"}[rand.IntN(3)]
			faults[fault]++
			switch fault {
			case "kill":
				nodes[n].Kill()
				heal = append(heal, nodes[n].Restart)
			case "stall":
				nodes[n].Stop()
				heal = append(heal, nodes[n].Cont)
			case "clock": // until the next time
				setClock(n, steps[rand.IntN(len(steps))])
				set = append(set, n)
			}
		}
		time.Sleep(50 * time.Millisecond)
		for _, undo := range heal {
			undo()
		}
	}, &lost)
	t.Logf("%d acquisitions with one holder at a time and growing fences, %d told that they were lost; %v", total, lost.Load(), faults)
}

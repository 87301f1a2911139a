package localcache

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"
)

// outcome is how a call ended. Every call has one.
type outcome int

const (
	// of a Get
	miss outcome = iota
	hit
	null
	// of a fill
	filled
	outdated
	refused
	// of a Kept
	kept

	outcomes
)

// A gate knows when nobody is inside ristretto.
//
// ristretto's Close closes channels that its Get and Set send on, and a caller
// inside at that moment panics. So every call is counted as it enters and, by
// its outcome, as it leaves: what has entered and not left is inside. The counts
// by outcome are those of Stats, which would be kept anyhow, so that the gate
// itself costs one atomic addition, 5 ns; a read lock takes 10 and counts
// nothing.
//
// The counters are split into lanes, as cores that write to the same one wait
// for each other.
type gate struct {
	lanes [1 << laneBits]lane
}

const laneBits = 6

type lane struct {
	entered atomic.Int64 // negative once the gate is shut
	left    [outcomes]atomic.Uint64
	fronted atomic.Uint64 // hits in the front, see there
	passed  atomic.Uint64 // those of them that went on to the gate all the same

	_ [128 - 8*(3+outcomes)]byte // processors fetch cache lines of 64 bytes in pairs
}

// lane chooses one for the calling goroutine.
func (g *gate) lane() *lane {
	// Goroutines that run at the same time have their stacks in different
	// places, so the place of the stack chooses the lane. It is a number here
	// and never followed: it does not matter if the stack moves meanwhile.
	var here byte
	place := uint64(uintptr(unsafe.Pointer(&here))) >> 11 // no stack is smaller than 2 KiB
	return &g.lanes[place*golden>>(64-laneBits)]
}

// enter reports whether the caller is let in. Then it has to leave.
func (l *lane) enter() bool { return l.entered.Add(1) > 0 }

// leave counts the outcome and returns how many of the kind there were.
func (l *lane) leave(o outcome) uint64 { return l.left[o].Add(1) }

// shut turns new callers away and returns when the last one inside has left.
func (g *gate) shut() {
	for i := range g.lanes {
		l := &g.lanes[i]
		admitted := uint64(l.entered.Or(math.MinInt64))
		// Those who leave do not look for somebody waiting, since that would be
		// paid by every hit; so the one who waits looks again.
		for pause := time.Microsecond; l.exits() != admitted; pause = min(2*pause, time.Millisecond) {
			time.Sleep(pause)
		}
	}
}

func (l *lane) exits() (n uint64) {
	for i := range l.left {
		n += l.left[i].Load()
	}
	return n
}

// count returns how many calls ended like that.
func (g *gate) count(o outcome) (n uint64) {
	for i := range g.lanes {
		n += g.lanes[i].left[o].Load()
	}
	return n
}

// fronted returns how many hits did not go through the gate.
func (g *gate) fronted() (n uint64) {
	for i := range g.lanes {
		passed := g.lanes[i].passed.Load() // first, or it might be of later hits than the other
		n += g.lanes[i].fronted.Load() - passed
	}
	return n
}

package tier

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
	// of another call
	other

	outcomes
)

// A callCounter counts calls in and out, so that Close knows when no caller is inside
// ristretto. Stats reports its counts by outcome.
//
// ristretto's Close closes channels that its Get and Set send on, so a caller that
// is inside at that moment panics. Every call is counted when it enters and, by its
// outcome, when it leaves; the difference is the number of callers inside. Stats needs
// the second count anyway, so the protection costs one atomic addition, 5 ns; a read
// lock takes 10 ns and counts nothing.
//
// The counters are split into shards, because cores that write to the same counter
// wait for each other.
type callCounter struct {
	shards [1 << shardBits]callShard
}

const shardBits = 6

type callShard struct {
	entered atomic.Int64 // negative once Close has begun
	left    [outcomes]atomic.Uint64
	fronted atomic.Uint64 // hits in the front
	passed  atomic.Uint64 // hits in the front that went on into ristretto, see passBits

	_ [128 - 8*(3+outcomes)]byte // processors fetch cache lines of 64 bytes in pairs
}

// shard chooses a shard for the calling goroutine.
func (c *callCounter) shard() *callShard {
	// Goroutines that run at the same time have their stacks in different places, so
	// the address of a local variable chooses the shard. It is used only as a number,
	// so it does not matter if the stack moves later.
	var here byte
	place := uint64(uintptr(unsafe.Pointer(&here))) >> 11 // no stack is smaller than 2 KiB
	return &c.shards[place*golden>>(64-shardBits)]
}

// enter reports whether the caller may go on: Close has not begun. If so, it has to call leave.
func (s *callShard) enter() bool { return s.entered.Add(1) > 0 }

// leave counts a call with outcome o and returns how many calls of the shard have ended like that.
func (s *callShard) leave(o outcome) uint64 { return s.left[o].Add(1) }

// close makes enter report false and returns when the last caller inside has left.
func (c *callCounter) close() {
	for i := range c.shards {
		s := &c.shards[i]
		admitted := uint64(s.entered.Or(math.MinInt64))
		// close polls, because leave signals nothing: every hit would pay for that.
		for pause := time.Microsecond; s.exits() != admitted; pause = min(2*pause, time.Millisecond) {
			time.Sleep(pause)
		}
	}
}

func (s *callShard) exits() (n uint64) {
	for i := range s.left {
		n += s.left[i].Load()
	}
	return n
}

// count returns how many calls ended with outcome o.
func (c *callCounter) count(o outcome) (n uint64) {
	for i := range c.shards {
		n += c.shards[i].left[o].Load()
	}
	return n
}

// fronted returns how many hits of the front did not go on into ristretto.
func (c *callCounter) fronted() (n uint64) {
	for i := range c.shards {
		passed := c.shards[i].passed.Load() // before fronted: read later, it could count hits that fronted does not
		n += c.shards[i].fronted.Load() - passed
	}
	return n
}

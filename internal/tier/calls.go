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

// A callCounter counts calls in and out, so that Close knows when nobody is inside
// ristretto. The counts by outcome are also those of Stats.
//
// ristretto's Close closes channels that its Get and Set send on, so a caller that
// is inside at that moment panics. Every call is counted as it enters and, by its
// outcome, as it leaves; the difference is the number of callers inside. Stats needs
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
	fronted atomic.Uint64 // hits in the front, which did not enter
	passed  atomic.Uint64 // those of them that entered all the same, see passBits

	_ [128 - 8*(3+outcomes)]byte // processors fetch cache lines of 64 bytes in pairs
}

// shard chooses one for the calling goroutine.
func (c *callCounter) shard() *callShard {
	// Goroutines that run at the same time have their stacks in different places, so
	// the address of a local variable chooses the shard. It is used as a number only,
	// so it does not matter if the stack moves later.
	var here byte
	place := uint64(uintptr(unsafe.Pointer(&here))) >> 11 // no stack is smaller than 2 KiB
	return &c.shards[place*golden>>(64-shardBits)]
}

// enter reports whether the caller is let in. If so, it has to leave.
func (s *callShard) enter() bool { return s.entered.Add(1) > 0 }

// leave counts the outcome and returns how many calls have ended like that.
func (s *callShard) leave(o outcome) uint64 { return s.left[o].Add(1) }

// close turns new callers away and returns when the last one inside has left.
func (c *callCounter) close() {
	for i := range c.shards {
		s := &c.shards[i]
		admitted := uint64(s.entered.Or(math.MinInt64))
		// Callers that leave wake nobody, because every hit would pay for that. So
		// close polls.
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

// count returns how many calls ended like that.
func (c *callCounter) count(o outcome) (n uint64) {
	for i := range c.shards {
		n += c.shards[i].left[o].Load()
	}
	return n
}

// fronted returns how many hits did not enter.
func (c *callCounter) fronted() (n uint64) {
	for i := range c.shards {
		passed := c.shards[i].passed.Load() // first: read last, it could count hits that fronted does not
		n += c.shards[i].fronted.Load() - passed
	}
	return n
}

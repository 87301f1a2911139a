package bloom

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/bits-and-blooms/bloom/v3"
)

// maxBytes is what the table of one filter may take; a Rebuild holds two.
const maxBytes = 4 << 30

// Options of a Filter. Only Capacity is required.
type Options struct {
	// Name tells filters apart that share a Redis. Open needs one; New has no use
	// for it.
	Name string

	// Capacity is how many ids the filter is sized for. It takes more, at a
	// higher rate of false positives. It must not be 0.
	Capacity uint64
	// FalsePositiveRate is the share of absent ids that the filter lets pass once
	// it holds Capacity ids, at least 1e-9 and below 1. Zero means 0.01, which
	// takes 9.6 bits an id.
	FalsePositiveRate float64
	// MaxFalsePositiveRate is the estimated rate above which the filter abstains,
	// above FalsePositiveRate and at most 1. Zero means halfway from
	// FalsePositiveRate to 1, about a half: what it answers until then is right and
	// still spares the source most absent ids. Negative means that it never
	// abstains for this reason.
	MaxFalsePositiveRate float64

	// Secret is what the positions of an id are computed with, so that nobody
	// without it can compute ids that pass. At least 16 bytes; all instances that
	// share a filter need the same. Empty means a random one; that of a shared filter
	// is stored beside it, for those to see who can read from Redis.
	Secret []byte
	// Counting makes a filter that can Remove, for four times the memory. A shared one
	// takes five times in Redis, and no more than another in each process, but for the
	// one that rebuilds it.
	Counting bool
	// Complete says that nothing exists but what Add is told: the filter answers
	// at once. Otherwise it abstains until its first Rebuild has completed.
	//
	// It is about the moment at which New or Open is called. Open uses it only where
	// it is the one to make the filter in Redis: one that is there already is taken as
	// it is, and if Redis does not answer Open, or loses the filter later, it takes a
	// Rebuild. But a Redis that has lost its data looks to Open like one that never had
	// any. So set it where a service is put up for the first time and not where it is
	// started again: what exists would be denied until a Rebuild.
	Complete bool

	// Confirm makes a shared filter look into Redis before each no, so that what any
	// process has added before the question is never denied. All who ask at a time
	// share one look. New has no use for it: in one process no answer can lag.
	Confirm bool
	// MaxLag is how far a shared filter may be behind Redis and still say no: what
	// another process has added may be denied for that long. Zero means 1 s; at least
	// 20 ms. Redis is asked for news four times in it. New has no use for it.
	MaxLag time.Duration

	// MaxTransaction is how long after Add a row may take to commit. A Rebuild
	// cannot see rows that commit while it scans, so it takes over what was added
	// within this time before it began. Zero means 1 min; negative means that rows
	// are committed when they are added.
	MaxTransaction time.Duration

	// Progress is called now and then during a Rebuild, and at its end, with the
	// number of ids read so far. It runs on the goroutine that reads the ids, which
	// waits for it. Nil means nobody is told.
	Progress func(done uint64)
	// Logger gets what a shared filter survives, and that it is full. Nil means
	// slog.Default(). New has no use for it.
	Logger *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.Capacity == 0 {
		return o, errors.New("bloom: Capacity must not be 0")
	}
	if o.FalsePositiveRate == 0 {
		o.FalsePositiveRate = 0.01
	}
	if p := o.FalsePositiveRate; !(p >= 1e-9 && p < 1) {
		return o, fmt.Errorf("bloom: FalsePositiveRate must be at least 1e-9 and below 1, is %v", p)
	}
	if o.MaxFalsePositiveRate == 0 {
		o.MaxFalsePositiveRate = (1 + o.FalsePositiveRate) / 2
	}
	if p := o.MaxFalsePositiveRate; p >= 0 && !(p > o.FalsePositiveRate && p <= 1) || math.IsNaN(p) {
		return o, fmt.Errorf("bloom: MaxFalsePositiveRate must be above FalsePositiveRate %v and at most 1, or negative for no bound, is %v", o.FalsePositiveRate, p)
	}
	if n := len(o.Secret); n > 0 && n < 16 {
		return o, fmt.Errorf("bloom: Secret must have at least 16 bytes, has %d", n)
	}
	if o.MaxLag < 0 {
		return o, fmt.Errorf("bloom: MaxLag must not be negative, is %v", o.MaxLag)
	}
	if o.MaxTransaction == 0 {
		o.MaxTransaction = time.Minute
	}
	return o, o.checkSize()
}

// checkSize does in floating point what size does in integers that overflow.
func (o Options) checkSize() error {
	bytes := float64(o.Capacity) * -math.Log(o.FalsePositiveRate) / (math.Ln2 * math.Ln2) / 8
	if o.Counting {
		bytes *= counterBits
	}
	if bytes > maxBytes {
		return fmt.Errorf("bloom: Capacity %d at FalsePositiveRate %v takes %.3g GiB, more than %d", o.Capacity, o.FalsePositiveRate, bytes/(1<<30), maxBytes>>30)
	}
	return nil
}

// chunk is how many ids go into one call to Redis. It keeps others waiting for less
// than a millisecond.
func (o Options) chunk() int {
	if o.Counting {
		return addChunk / 4
	}
	return addChunk
}

// size is the number of positions of the table, in whole words, and how many of
// them an id has.
func (o Options) size() (positions uint64, hashes int) {
	m, k := bloom.EstimateParameters(uint(o.Capacity), o.FalsePositiveRate)
	return (uint64(m) + 63) / 64 * 64, int(k)
}

package bloom

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/logonce"
)

// maxBytes is how large the table of a filter may be; a Rebuild holds two tables.
const maxBytes = 4 << 30

// Options configures a Filter. Capacity is required, and Open needs a Name.
type Options struct {
	// Name distinguishes filters that share a Redis, and names the filter in metrics. Open needs
	// a Name that is not blank and has no control characters; New accepts any.
	Name string
	// Prefix is put in front of the names of a shared filter's keys and channel, followed by a colon:
	// filters of different prefixes are independent, such as those of two environments on one Redis.
	// It is not shown in Stats or logs. "": none. At most 100 bytes, no braces and no control
	// characters. New ignores it.
	Prefix string

	// Capacity is how many ids the filter is sized for. The filter takes more, at a
	// higher rate of false positives. It must not be 0.
	Capacity uint64
	// FalsePositiveRate is the share of absent ids that pass when the filter holds
	// Capacity ids, at least 1e-9 and below 1. 0: 0.01, which takes 9.9 bits an id.
	FalsePositiveRate float64
	// MaxFalsePositiveRate is the estimated rate above which the filter abstains. It
	// must be above FalsePositiveRate and at most 1. 0: halfway from FalsePositiveRate
	// to 1, about a half, up to which the filter stops half of the absent ids or
	// more. Negative: the filter never abstains for this reason.
	MaxFalsePositiveRate float64

	// Secret keys the hash that gives an id its positions. Nobody without it can compute
	// ids that pass. It has at least 16 bytes, and all instances that share a filter need
	// the same. Empty: a random one, which a shared filter stores in Redis, where whoever
	// can read from Redis can see it, and a filter of one process keeps in a hash of its own,
	// which is quicker and not a cryptographic one.
	Secret []byte
	// Counting makes a filter that can Remove, for four times the memory. Open refuses it:
	// a shared filter forgets deleted ids at its next Rebuild.
	Counting bool
	// Complete says that no id exists yet when New or Open is called, so that the filter
	// answers at once. Otherwise it abstains until its first Rebuild has completed. Leave it
	// false where rows exist, and cache.Cache.KeepFilter makes that Rebuild; set it for an
	// empty database, as in a test.
	//
	// Open honours Complete only when it creates the filter in Redis. It uses a filter that
	// exists as it is. If Redis does not reply to Open, or loses the filter later, the filter
	// needs a Rebuild. A Redis that has lost its data looks to Open like a new one: set
	// Complete for the first deployment and never on a restart, or the filter denies ids
	// that exist until a Rebuild.
	Complete bool

	// MaxLag is how far a shared filter may be behind Redis and still say no: it may
	// deny an id for that long after another process has added it. Leave it 0, which is 1 s,
	// or take 100 ms where a new row must be found sooner even if a message is lost; each
	// process reads the log four times in MaxLag. At least 20 ms; give all processes the
	// same. New ignores it, but refuses a negative one.
	MaxLag time.Duration

	// MaxTransaction is how long a row may take to commit after Add was called, or a method of
	// a cache that calls Add (Write, Also, Set, Announce), and how long after the commit of a
	// deletion Remove may begin. A Rebuild may miss rows that commit during its scan, so its
	// result also holds the ids that were added within MaxTransaction before it. Leave it 0,
	// which is 1 min, or take the time of your longest transaction that inserts rows, such as
	// an import. Give all processes the same.
	// Negative: every row has committed when its id is added, and nobody removes an id whose
	// deletion committed before the end of a Rebuild: see Remove.
	MaxTransaction time.Duration

	// Progress is called during a Rebuild after every 65,536 ids, and at its end, with
	// the number of ids read so far. It runs on the goroutine that reads the ids, which
	// waits for it. It is not called while Rebuild waits before it reads the ids.
	// Nil: no progress is reported.
	Progress func(done uint64)
	// Logger logs when a shared filter stops or resumes following Redis, and when it
	// holds more ids than Capacity. Nil: slog.Default(). New ignores it.
	Logger *slog.Logger
}

// withDefaults returns o with the defaults filled in, or an error that names the wrong
// option.
func (o Options) withDefaults() (Options, error) {
	if o.Capacity == 0 {
		return o, errors.New("bloom: Capacity must not be 0")
	}
	if o.FalsePositiveRate == 0 {
		o.FalsePositiveRate = 0.01
	}
	if p := o.FalsePositiveRate; !(p >= 1e-9 && p < 1) {
		return o, fmt.Errorf("bloom: FalsePositiveRate must be at least 1e-9 and below 1, got %v", p)
	}
	if o.MaxFalsePositiveRate == 0 {
		o.MaxFalsePositiveRate = (1 + o.FalsePositiveRate) / 2
	}
	if p := o.MaxFalsePositiveRate; p >= 0 && !(p > o.FalsePositiveRate && p <= 1) || math.IsNaN(p) {
		return o, fmt.Errorf("bloom: MaxFalsePositiveRate must be above FalsePositiveRate %v and at most 1, or negative for no bound, got %v", o.FalsePositiveRate, p)
	}
	if n := len(o.Secret); n > 0 && n < 16 {
		return o, fmt.Errorf("bloom: Secret must have at least 16 bytes, got %d", n)
	}
	if o.MaxLag < 0 {
		return o, fmt.Errorf("bloom: MaxLag must not be negative, got %v", o.MaxLag)
	}
	if o.MaxTransaction == 0 {
		o.MaxTransaction = time.Minute
	}
	return o, o.checkSize()
}

// withSharedDefaults is withDefaults for Open.
func (o Options) withSharedDefaults() (Options, error) {
	if err := errors.Join(keys.CheckName(o.Name), keys.CheckPrefix(o.Prefix)); err != nil {
		return o, fmt.Errorf("bloom: %w", err)
	}
	o, err := o.withDefaults()
	if err != nil {
		return o, err
	}
	if o.MaxLag == 0 {
		o.MaxLag = time.Second
	}
	if o.Counting {
		return o, errors.New("bloom: a shared filter does not count: Rebuild it now and then to forget deleted ids, as cache.Cache.KeepFilter does")
	}
	if o.MaxLag < 20*time.Millisecond {
		return o, fmt.Errorf("bloom: MaxLag must be at least 20ms, got %v", o.MaxLag)
	}
	if _, err := newKey(o.Secret); err != nil {
		return o, err
	}
	o.Secret = slices.Clone(o.Secret)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Logger = logonce.WithEvents(o.Logger)
	return o, nil
}

// checkSize refuses a table that is too large.
func (o Options) checkSize() error {
	bytes := float64(newShape(o.Capacity, o.FalsePositiveRate, 0).blocks) * blockBits / 8
	if o.Counting {
		bytes *= counterBits
	}
	if bytes > maxBytes {
		return fmt.Errorf("bloom: Capacity %d at FalsePositiveRate %v takes %.3g GiB, more than %d", o.Capacity, o.FalsePositiveRate, bytes/(1<<30), maxBytes>>30)
	}
	return nil
}

// addChunk is how many ids go into one script. A script then keeps other clients of Redis
// waiting for less than a millisecond.
const addChunk = 256

// back returns how far before its scan a Rebuild begins to read the log. A row commits at most
// MaxTransaction after the call of its Add, and the log gets the id after the call. The callTimeout
// more is for callers who count from the return of an Add of one chunk.
func (o Options) back() time.Duration {
	if o.MaxTransaction < 0 {
		return 0
	}
	return later(o.MaxTransaction, callTimeout)
}

// retention returns how long a process keeps the ids that it has added, in case Redis loses them.
func (o Options) retention() time.Duration { return max(o.back(), time.Minute) }

// logRetention returns how long the log keeps an entry. A Rebuild needs the entry that it begins
// at until its first read of the log, which may get no reply until the lease ends.
func (o Options) logRetention() time.Duration { return later(o.retention(), leaseLife) }

// later returns the sum of d and more, or the longest Duration if the sum is longer.
func later(d, more time.Duration) time.Duration {
	if d > math.MaxInt64-more {
		return math.MaxInt64
	}
	return d + more
}

// settle returns how old a log must be before a Rebuild trusts it to have the ids that processes
// had added to a filter that Redis has lost. By then each process has read the log in vain, which
// it does four times in MaxLag, has read the new record and has added its ids again, even if each
// of these three calls takes callTimeout.
func (o Options) settle() time.Duration {
	return min(2*o.MaxLag+3*callTimeout, o.back())
}

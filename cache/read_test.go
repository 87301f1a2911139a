package cache_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

func TestAHitComesFromTheNearestTier(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source())

		first, err := c.Fetch(r.ctx, 1)
		if err != nil || first.Value != "v1" || first.Tier != cache.TierSource {
			r.Fatalf("the first Fetch gives %+v, %v", first, err)
		}
		hit := c.comesFrom(r, 1, r.near())
		if hit.Value != "v1" || hit.Stale {
			r.Errorf("the hit is %+v", hit)
		}
		loads := source.loads(1) // without Redis those before the local tier shows the fill
		c.gives(r, 1, "v1")
		if r.kept() && source.loads(1) != loads {
			r.Error("a hit asked the source")
		}

		if r.rdb == nil {
			return
		}
		other := open(r, source.source())
		if hit := other.comesFrom(r, 1, cache.TierRedis); hit.Value != "v1" {
			r.Errorf("another process gets %+v", hit)
		}
		other.comesFrom(r, 1, r.near())
		if n := source.loads(1); n != 1 {
			r.Errorf("%d loads for two processes", n)
		}
	})
}

// If Redis did not carry the time of the load, the age would start anew there.
func TestAgeIsCountedFromTheLoad(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		if !r.kept() {
			return
		}
		c := open(r, newRows(r, 1).source())
		loaded := time.Now()
		c.gives(r, 1, "v1")
		tiers := []*probe[int64, string]{c}
		if r.rdb != nil {
			tiers = append(tiers, open(r, newRows(r, 1).source()))
		}
		for _, c := range tiers {
			r.eventually("the age grows", func() bool {
				got, err := c.Fetch(r.ctx, 1)
				most := time.Since(loaded) + time.Millisecond // it is kept in milliseconds
				if err != nil || got.Age < 0 || got.Age > most {
					r.Fatalf("the age is %v, at most %v is true, %v", got.Age, most, err)
				}
				return got.Age > 20*time.Millisecond && got.Tier != cache.TierSource
			})
		}
	})
}

func TestNotFoundIsKeptAsLongAsNullTTL(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source := newRows(r)
		c := open(r, source.source(), func(o *cache.Options) { o.NullTTL = 200 * time.Millisecond })

		if r.filter { // what it does not know is not even asked for
			got, err := c.Fetch(r.ctx, 6)
			if !errors.Is(err, cache.ErrNotFound) || got.Tier != cache.TierFilter || source.loads(6) != 0 {
				r.Errorf("the filter lets pass: %+v, %v, %d loads", got, err, source.loads(6))
			}
		}
		r.known(7) // and of what it does know it may be wrong
		c.gives404(r, 7)
		loads := 1
		if r.rdb != nil {
			if left := r.rdb.PTTL(r.ctx, valueKey(7)).Val(); left > 0 {
				r.Errorf("Redis has the null of a first miss for %v", left)
			}
		}
		if r.rdb != nil && !r.local {
			loads = 2 // Redis takes a null at its second miss
			c.gives404(r, 7)
			if left := r.rdb.PTTL(r.ctx, valueKey(7)).Val(); left <= 0 || left > 200*time.Millisecond {
				r.Errorf("the null stays for %v", left)
			}
		}
		if !r.kept() {
			c.gives404(r, 7)
			if source.loads(7) != 2 {
				r.Error("where is the null kept?")
			}
			return
		}
		got := c.comesFrom(r, 7, r.near())
		// The local tier shows a null some moments after the fill, so there may be a
		// second miss there too.
		if got.Value != "" || r.rdb != nil && (source.loads(7) < loads || source.loads(7) > 2) {
			r.Errorf("from the null come %+v, %d loads", got, source.loads(7))
		}
		s := c.Stats()
		if s.Null == 0 || r.filter && s.FilterFalse == 0 {
			r.Errorf("it is not counted: %+v", s)
		}
		// The row appears, and nobody says so: the null's end is the bound.
		source.put(7, "v1")
		r.eventually("the null ends", func() bool {
			got, err := c.Get(r.ctx, 7)
			return err == nil && got == "v1"
		})
	})
}

func TestTheEndOfTheTTLIsTheEndOfTheValue(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		const life = 150 * time.Millisecond
		rounds := 20
		if r.redis == "real" {
			rounds = 1
		}
		source := newRows(r, 1)
		c := open(r, source.source(), ttl(life), hard)
		for round := range rounds {
			old, next := fmt.Sprintf("v%d", round+1), fmt.Sprintf("v%d", round+2)
			r.eventually("the new value is loaded", func() bool {
				got, _ := c.Get(r.ctx, 1)
				return got == old
			})
			loaded := time.Now()
			source.put(1, next) // and nobody says so
			for {
				before := time.Now()
				got, err := c.Get(r.ctx, 1)
				if got == next {
					break
				}
				if err != nil || got != old {
					r.Fatalf("got %q, %v", got, err)
				}
				if age := before.Sub(loaded); age > life {
					r.Fatalf("got a value %v after its load", age)
				}
				time.Sleep(5 * time.Millisecond)
			}
			if n := source.loads(1); r.rdb != nil && n > round+2 {
				r.Fatalf("%d loads for %d values", n, round+2)
			}
		}
	})
}

// Each path that writes has its own call of the jitter: taking out any of the
// three fails this, and so does a jitter that adds.
func TestEveryWritePathShortensTheTTLAndNeverLengthensIt(t *testing.T) {
	const n, whole = 100, time.Hour
	inCells(t, []cell{{redis: "mini"}, {redis: "real"}}, func(r *rig) {
		source := newRows(r)
		c := open(r, source.source(), func(o *cache.Options) { o.TTL, o.NullTTL, o.Jitter = whole, whole, 0.5 }, hard)
		for key := range int64(n) {
			source.put(key, "v1")
			c.gives(r, key, "v1")
			c.gives404(r, n+key)
			c.gives404(r, n+key) // Redis takes a null at its second miss
			if err := c.Set(r.ctx, 2*n+key, "v1"); err != nil {
				r.Fatal(err)
			}
		}
		for path, from := range map[string]int{"loaded": 0, "null": n, "set": 2 * n} {
			var lefts []time.Duration
			for key := from; key < from+n; key++ {
				lefts = append(lefts, r.rdb.PTTL(r.ctx, valueKey(key)).Val())
			}
			least, most := slices.Min(lefts), slices.Max(lefts)
			// Of 100 uniform draws all lie on one side with probability 2^-99.
			if most > whole || least < whole/2-time.Minute || least > whole*3/4 || most < whole*3/4 {
				r.Errorf("%s: the TTLs are from %v to %v", path, least, most)
			}
		}
	})
}

func TestNegativeJitterIsNone(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source(), func(o *cache.Options) { o.TTL, o.Jitter = time.Hour, -1 }, hard)
		c.gives(r, 1, "v1")
		if left := r.rdb.PTTL(r.ctx, valueKey(1)).Val(); left != time.Hour {
			r.Errorf("%v left of an hour", left)
		}
	})
}

func TestCallersOfOneKeyShareOneLoad(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		source.slowly(gate.wait)
		c := open(r, source.source())
		var wg sync.WaitGroup
		get := func() { c.gives(r, 1, "v1") }
		wg.Go(get)
		gate.arrived(r)
		for range 99 {
			wg.Go(get)
		}
		r.eventually("all are in", func() bool { return c.Stats().Gets == 100 })
		close(gate.open)
		wg.Wait()
		// Who comes between the end of the flight and the fill looks into Redis.
		if n := source.atOnce(); n != 1 {
			r.Errorf("%d loads of one key ran at one time", n)
		}
		if n := source.loads(1); r.rdb != nil && n != 1 {
			r.Errorf("%d loads", n)
		}
	})
}

func TestTheLoadersErrorReachesAllAndIsHeld(t *testing.T) {
	broken := errors.New("disk full")
	inCells(t, everyCell(), func(r *rig) {
		source := newRows(r, 1)
		source.slowly(func(context.Context, int64) error { return fmt.Errorf("reading: %w", broken) })
		c := open(r, source.source(), func(o *cache.Options) { o.Rebuild.ErrorHold = time.Hour })
		for range 20 {
			if got, err := c.Get(r.ctx, 1); !errors.Is(err, broken) || got != "" || errors.Is(err, cache.ErrNotFound) {
				r.Errorf("Get is %q, %v", got, err)
			}
		}
		if n := source.loads(1); n != 1 {
			r.Errorf("%d loads while the error is held", n)
		}
		source.slowly(nil)
		if err := c.Invalidate(r.ctx, 1); err != nil {
			r.Error(err)
		}
		c.gives(r, 1, "v1") // what was invalidated is asked for again
	})
}

func TestNotFoundIsRecognizedHoweverItIsWrapped(t *testing.T) {
	errNoDocument := errors.New("no documents in result")
	for name, err := range map[string]error{
		"bare":       cache.ErrNotFound,
		"wrapped":    fmt.Errorf("product: %w", cache.ErrNotFound),
		"joined":     errors.Join(errors.New("product"), cache.ErrNotFound),
		"a driver's": fmt.Errorf("product: %w", errNoDocument),
		"sql's":      fmt.Errorf("product: %w", sql.ErrNoRows),
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, fewCells, func(r *rig) {
				source := newRows(r, 1)
				source.slowly(func(context.Context, int64) error { return err })
				c := open(r, source.source(), func(o *cache.Options) {
					o.IsNotFound = func(err error) bool { return errors.Is(err, errNoDocument) }
				})
				c.gives404(r, 1)
				if s := c.Stats(); s.Loaded != 1 || s.Errors != 0 || s.LoadErrors != 0 || s.Breaker.Failures != 0 {
					r.Errorf("not found is counted as a failure: %+v", s)
				}
			})
		})
	}
}

// What makes a key absent is ErrNotFound, sql.ErrNoRows or IsNotFound and nothing else:
// not a text, not a nil, and not an error that the cache was not told of.
func TestWhatIsAValueAndWhatIsNone(t *testing.T) {
	const (
		value = iota
		none
		fault
	)
	type loaded struct {
		value any
		err   error
	}
	errNoDocument := errors.New("no documents in result") // a driver's own
	for name, c := range map[string]struct {
		loaded
		is int
	}{
		"a value":                           {loaded{"v1", nil}, value},
		"nil":                               {loaded{nil, nil}, value},
		"a nil pointer in an interface":     {loaded{(*product)(nil), nil}, value},
		"a nil slice in an interface":       {loaded{[]string(nil), nil}, value},
		"ErrNotFound":                       {loaded{nil, cache.ErrNotFound}, none},
		"a value, and ErrNotFound":          {loaded{"v1", cache.ErrNotFound}, none},
		"sql.ErrNoRows":                     {loaded{nil, fmt.Errorf("product: %w", sql.ErrNoRows)}, none},
		"what IsNotFound knows":             {loaded{nil, errNoDocument}, none},
		"what IsNotFound knows, and others": {loaded{nil, errors.Join(sql.ErrConnDone, errNoDocument)}, none},
		"what IsNotFound does not know":     {loaded{nil, sql.ErrTxDone}, fault},
		"a value, and an error":             {loaded{"v1", errBroken}, fault},
		"a text that says so":               {loaded{nil, errors.New(cache.ErrNotFound.Error())}, fault},
		"the end of another context":        {loaded{nil, context.DeadlineExceeded}, fault},
	} {
		for _, batch := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, batch %v", name, batch), func(t *testing.T) {
				inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
					src := cache.Source[int64, any]{Load: func(context.Context, int64) (any, error) { return c.value, c.err }}
					if batch {
						src = cache.Source[int64, any]{LoadMany: func(_ context.Context, keys []int64) (map[int64]any, error) {
							return map[int64]any{keys[0]: c.value}, c.err
						}}
					}
					p := open(r, src, func(o *cache.Options) {
						o.IsNotFound = func(err error) bool { return errors.Is(err, errNoDocument) }
					}, unheld, new(testCodec).set)
					for range 3 {
						_, err := p.Get(r.ctx, 1)
						is := fault
						if err == nil {
							is = value
						} else if errors.Is(err, cache.ErrNotFound) {
							is = none
						}
						if is != c.is || is == fault && !errors.Is(err, c.err) {
							r.Errorf("Get: %v", err)
						}
					}
					if n := r.rdb.Exists(r.ctx, valueKey(1)).Val(); n != 0 && c.is == fault {
						r.Error("of a fault something is stored")
					}
				})
			})
		}
	}
}

// A value that only looks empty exists.
func TestZeroValuesAreValues(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		c := open(r, cache.Source[int64, string]{
			Load: func(context.Context, int64) (string, error) { return "", nil },
		})
		c.gives(r, 1, "")
		c.comesFrom(r, 1, r.near())
		c.gives(r, 1, "")
		if s := c.Stats(); s.Null != 0 {
			r.Errorf("%+v", s)
		}
	})
}

func TestAnEndedContextGetsAnErrorAndNoLoad(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source())
		ctx, cancel := context.WithCancelCause(r.ctx)
		why := errors.New("shutting down")
		cancel(why)
		if _, err := c.Get(ctx, 1); !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
			r.Errorf("Get: %v", err)
		}
		if n := source.loads(1); n != 0 {
			r.Errorf("%d loads", n)
		}
	})
}

package cache

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

// FuzzDecode feeds bytes from Redis to formats of several kinds, as they are and
// with a fitting header, so that the codecs get their share. None may panic, make
// much of little, or read what does not fit.
func FuzzDecode(f *testing.F) {
	for _, g := range goldens {
		f.Add("42", read(f, goldenFile(version, g.name)))
	}
	_, data := stored(f)
	f.Add("42", data)
	f.Add("42", data[:headerSize])
	f.Add("42", data[:20])
	f.Add("", []byte{})
	f.Add("42", append(bytes.Clone(data[:headerSize]), `[[[[[[[[[[{"a":{"a":{"a":[1e999,"\ud800"`...))
	o := Options{Name: "product", MaxValue: 1 << 20}
	raw, text := redistest.Must(newFormat[[]byte](o, nil)), redistest.Must(newFormat[string](o, nil))
	structs, anything := redistest.Must(newFormat[*goldenProduct](o, nil)), redistest.Must(newFormat[map[string]any](o, nil))
	f.Fuzz(func(t *testing.T, id string, data []byte) {
		data, id = data[:min(len(data), 1024)], id[:min(len(id), 512)] // as long as a key may be
		if allocated := allocatedBy(func() {
			_, _ = text.decode(id, data)
			_, _ = raw.decode(id, data)
			_, _ = structs.decode(id, data)
			_, _ = anything.decode(id, data)
		}); allocated > 64<<10 {
			t.Errorf("%d bytes of input make %d allocated", len(data), allocated)
		}
		if len(data) < headerSize {
			return
		}
		if allocated := allocatedBy(func() {
			_, _ = text.decode(id, fitting(text, id, data))
			_, _ = raw.decode(id, fitting(raw, id, data))
			_, _ = structs.decode(id, fitting(structs, id, data))
			_, _ = anything.decode(id, fitting(anything, id, data))
		}); allocated > 64<<10 {
			t.Errorf("%d bytes of input with a fitting header make %d allocated", len(data), allocated)
		}
	})
}

// fitting returns data with a header that f accepts for id, but for the kind, the
// times and the cost, which stay.
func fitting[V any](f format[V], id string, data []byte) []byte {
	data = bytes.Clone(data)
	copy(data, magic)
	data[offVersion], data[offCodec] = version, f.codecByte()
	data[offTags], data[offVersionSize], data[offMark] = 0, 0, 0
	binary.BigEndian.PutUint32(data[offSchema:], uint32(f.schema))
	binary.BigEndian.PutUint64(data[offDigest:], f.digest(id))
	binary.BigEndian.PutUint32(data[offFingerprint:], f.fingerprint)
	return reseal(data)
}

func allocatedBy(run func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// FuzzRoundTrip: what is encoded is decoded to the same, and to nothing under
// another id.
func FuzzRoundTrip(f *testing.F) {
	f.Add("42", "43", "lamp", int64(7), false, int64(goldenCreated), int64(goldenTTL), int64(57), 0)
	f.Add("", "\x00", "", int64(-1), true, int64(0), int64(1), int64(0), 1)
	f.Add("v1:x", "x", "\xff{}%", int64(math.MaxInt64), false, int64(-1), int64(math.MaxInt64), int64(math.MaxInt64), 1<<31-1)
	f.Fuzz(func(t *testing.T, id, other, text string, number int64, null bool, created, expires, cost int64, schema int) {
		o := Options{Name: "p", Schema: schema & (1<<31 - 1), MaxValue: 1 << 20}
		cost = min(max(cost, 0), 1<<32-1) // milliseconds
		times := life{null: null, created: created, expires: expires, cost: uint32(cost), epoch: uint64(number), hard: number%2 == 0}
		if len(other) > 0 && !null {
			times.more = &extra{tags: slices.Repeat([]uint32{uint32(number)}, len(other)%(maxTags+1)), version: other[:min(len(other), maxVersion)]}
			if len(times.more.tags) == 0 {
				times.more.tags = nil
			}
		}
		roundTrip(t, redistest.Must(newFormat[string](o, nil)), id, other, entry[string]{value: text, life: times})
		roundTrip(t, redistest.Must(newFormat[[]byte](o, nil)), id, other, entry[[]byte]{value: []byte(text), life: times})
		// JSON keeps valid UTF-8 only; that is the user's to know.
		p := &goldenProduct{ID: number, Name: strings.ToValidUTF8(text, "?"), Tags: []string{}}
		roundTrip(t, redistest.Must(newFormat[*goldenProduct](o, nil)), id, other, entry[*goldenProduct]{value: p, life: times})
	})
}

func roundTrip[V any](t *testing.T, f format[V], id, other string, e entry[V]) {
	t.Helper()
	if e.null {
		e.value = *new(V)
	}
	data, _, _, err := f.encode(id, &e)
	if err != nil {
		t.Fatal(err)
	}
	got, ok := f.decode(id, data)
	if !ok || !reflect.DeepEqual(got, &e) {
		t.Errorf("%+v comes back as %+v, %v", e, got, ok)
	}
	if again, _, _, err := f.encode(id, got); err != nil || !bytes.Equal(again, data) {
		t.Errorf("encoded again it is something else: %v", err)
	}
	if _, ok := f.decode(other, data); ok && id != other {
		t.Errorf("the value of %q is read as that of %q", id, other)
	}
}

// FuzzTTL: whatever TTL, jitter, moment and draw, what is stored lives for some
// time and never for longer than it may.
func FuzzTTL(f *testing.F) {
	for _, ttl := range []int64{math.MinInt64, -1, 0, 1, 999_999, 1e6, 1_500_000, 1e9, 600e9, math.MaxInt64} {
		for _, share := range []float64{0, 0.1, 0.5, 0.999999999, math.Nextafter(1, 0)} {
			f.Add(ttl, share, int64(1_750_000_000_123_999_999))
		}
	}
	f.Fuzz(func(t *testing.T, ns int64, share float64, at int64) {
		if !(share >= 0 && share < 1) {
			return // Options.Jitter is below 1 and so is a random number
		}
		ttl, now := time.Duration(ns), time.Unix(0, at)
		longest := max(ttl, time.Millisecond)
		short := shortened(ttl, share)
		if short <= 0 || short > longest {
			t.Fatalf("shortened(%v, %v) is %v", ttl, share, short)
		}
		if drawn := jittered(ttl, share); drawn <= 0 || drawn > longest {
			t.Fatalf("jittered(%v, %v) is %v", ttl, share, drawn)
		}
		var e entry[string]
		e.stamp(now, short, 0)
		if got := e.ttl(); got < time.Millisecond || got > longest {
			t.Errorf("stamped at %v with %v, it lives for %v", now, short, got)
		}
		for _, skew := range []time.Duration{0, -time.Hour, time.Hour, math.MaxInt64, math.MinInt64} {
			if left := e.left(now.Add(skew)); left < 0 || left > e.ttl() {
				t.Errorf("%v later %v are left of %v", skew, left, e.ttl())
			}
			if age := e.age(now.Add(skew)); age < 0 {
				t.Errorf("%v later it is %v old", skew, age)
			}
		}
	})
}

// FuzzTimesFromRedis: an entry's times are another host's word. No local life may
// come out of them that is longer than the TTL or shorter than nothing.
func FuzzTimesFromRedis(f *testing.F) {
	f.Add(int64(goldenCreated), int64(goldenCreated+goldenTTL), int64(goldenCreated))
	f.Add(int64(math.MinInt64), int64(math.MaxInt64), int64(0))
	f.Add(int64(math.MaxInt64), int64(math.MinInt64), int64(0))
	f.Add(int64(0), int64(1<<62), int64(1<<40))
	f.Fuzz(func(t *testing.T, created, expires, now int64) {
		e := entry[string]{life: life{created: created, expires: expires, cost: 3_600_000}}
		at := time.UnixMilli(now)
		most := localLife
		if life := jittered(min(e.left(at), most), 0.1); life <= 0 || life > most {
			t.Errorf("it would live for %v", life)
		}
		if age := e.age(at); age < 0 {
			t.Errorf("it is %v old", age)
		}
		// Nor does a value come back to life.
		var last state
		for _, w := range []windows{{}, {stale: time.Minute}, {fallback: time.Hour, early: 1}, {time.Minute, math.MaxInt64, 1e300}} {
			last = fresh
			for _, later := range []time.Duration{0, time.Second, time.Minute, time.Hour, math.MaxInt64} {
				s := w.of(e.life, at.Add(later), 0.5)
				if s < last || s > dead {
					t.Errorf("%+v: %v later it is %v, after %v", w, later, s, last)
				}
				last = s
			}
		}
	})
}

// FuzzOptions: New panics for no options, and those it accepts store nothing
// without a TTL.
func FuzzOptions(f *testing.F) {
	f.Add("p", 0, int64(0), int64(0), 0.0, int64(0), int64(0), int64(0), int64(0), int64(0), 0, 0, int64(0))
	f.Add("p", -1, int64(-1), int64(-1), -1.0, int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), -1, -1, int64(-1))
	f.Add("p", 1, int64(1e6), int64(1), 0.9999, int64(1e9), int64(1e9), int64(1e9), int64(1e9), int64(1e9), 1, 1, int64(1))
	f.Add(":", math.MaxInt32, int64(math.MaxInt64), int64(math.MaxInt64), math.NaN(), int64(1), int64(1), int64(1), int64(1), int64(1), 1, 1, int64(999_999))
	f.Add("p", 0, int64(math.MaxInt64), int64(1e6), math.Inf(-1), int64(0), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), math.MaxInt, math.MaxInt, int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, name string, schema int, ttl, nullTTL int64, jitter float64,
		redisTimeout, replicaLag, waitBudget, lease, localTTL int64, maxKey, maxValue int, own int64,
	) {
		o := Options{
			Name: name, Schema: schema,
			TTL: time.Duration(ttl), NullTTL: time.Duration(nullTTL), Jitter: jitter,
			RedisTimeout: time.Duration(redisTimeout), ReplicaLag: time.Duration(replicaLag),
			Local:  localcache.Options{MaxBytes: -1, TTL: time.Duration(localTTL)},
			MaxKey: maxKey, MaxValue: maxValue,
		}
		o.Rebuild.WaitBudget, o.Rebuild.Lease = time.Duration(waitBudget), time.Duration(lease)
		c, err := NewFrom(nil, Source[string, string]{
			Load: func(context.Context, string) (string, error) { return "v", nil },
			TTL:  func(string, string) time.Duration { return time.Duration(own) },
		}, o)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "cache: ") {
				t.Errorf("%v", err)
			}
			return
		}
		defer func() { _ = c.Close() }()
		longest := max(c.o.TTL, time.Duration(own))
		for _, e := range []*entry[string]{c.loader.newEntry("k", "v", 0, 0), c.loader.newEntry("k", "", 0, time.Hour), nullOf(c)} {
			data, _, ttl, err := c.values.format.encode("k", e)
			if err != nil || len(data) > 0 && (ttl < time.Millisecond || ttl > max(c.values.stored(longest), c.o.NullTTL)) {
				t.Errorf("%+v is stored for %v, %v", e, ttl, err)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if got, err := c.Get(ctx, ""); err == nil && got != "v" || err != nil && !errors.Is(err, ErrLoadTimeout) {
			t.Errorf("Get: %q, %v", got, err)
		}
	})
}

func nullOf[V any](c *Cache[string, V]) *entry[V] {
	e := &entry[V]{life: life{null: true}}
	e.stamp(time.Now(), jittered(c.o.NullTTL, c.o.Jitter), 0)
	return e
}

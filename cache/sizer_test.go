package cache_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strconv"
	"testing"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// tenfold is a codec that takes values of a page ten times the same line down to the
// line. With size it also is a Sizer.
type tenfold struct{}

type sizedTenfold struct {
	tenfold
	size func(v any) int
}

func (tenfold) Marshal(v any) ([]byte, error) {
	page, ok := v.([]byte)
	if !ok {
		return nil, errors.New("no page")
	}
	return page[:len(page)/10], nil
}

func (tenfold) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Repeat(data, 10)
	return nil
}

func (c sizedTenfold) Size(v any) int { return c.size(v) }

func pageSize(v any) int { return len(v.([]byte)) }

const pageBytes = 40_000

func printed(_ context.Context, id int64) ([]byte, error) {
	return bytes.Repeat([]byte(strconv.FormatInt(1e9+id, 10)), pageBytes/10), nil
}

// A codec that compresses by ten, 160 MB of pages and a budget of 16 MiB. An entry that
// counts as its bytes in Redis keeps all pages: without the Sizer the heap grows by some
// 150 MiB, which the last case holds to show that the pages would find room.
func TestASizerKeepsACompressingCodecToTheBudget(t *testing.T) {
	const budget, pages = 8 << 20, 2000
	for name, test := range map[string]struct {
		codec cache.Codec
		keeps bool
	}{
		"a Sizer":  {sizedTenfold{size: pageSize}, true},
		"no Sizer": {tenfold{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := cache.Options{Name: "page", Codec: test.codec}
			o.Local.MaxBytes = budget
			c := redistest.Must(cache.New(nil, printed, o))
			defer c.Close()
			before := heapInUse()
			for id := range int64(pages) {
				if _, err := c.Get(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
			grown := heapInUse() - before
			s := c.Stats().LocalTier
			t.Logf("the heap has grown by %d MiB, counted are %d of %d", grown>>20, s.Bytes>>20, budget>>20)
			if kept := grown <= budget*5/4; kept != test.keeps {
				t.Errorf("the heap has grown by %d MiB on a budget of %d", grown>>20, budget>>20)
			}
			if test.keeps && s.Bytes < budget/2 {
				t.Errorf("only %d MiB of %d are used", s.Bytes>>20, budget>>20)
			}
		})
	}
}

// What is loaded, what comes from Redis and what is Set counts as the Sizer says, and as
// its encoded length where the Sizer talks nonsense or panics.
func TestAnEntryCountsAsItsSizerSays(t *testing.T) {
	encoded := func(any) int { return pageBytes / 10 }
	for name, test := range map[string]struct {
		size  func(v any) int
		least int64
	}{
		"what it takes": {pageSize, pageBytes},
		"as encoded":    {encoded, pageBytes / 10},
		"nothing":       {func(any) int { return 0 }, pageBytes / 10},
		"less":          {func(any) int { return math.MinInt }, pageBytes / 10},
		"a panic":       {func(any) int { panic("bug in the Sizer") }, pageBytes / 10},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
				source := cache.Source[int64, []byte]{Load: printed}
				with := func(o *cache.Options) { o.Codec = sizedTenfold{size: test.size} }
				loads, reads, sets := open(r, source, with), open(r, source, with), open(r, source, with)
				want, _ := printed(r.ctx, 1)
				for _, c := range []*probe[int64, []byte]{loads, reads} {
					if got, err := c.Get(r.ctx, 1); err != nil || !bytes.Equal(got, want) {
						r.Errorf("%d bytes, %v", len(got), err)
					}
				}
				if s := reads.Stats(); r.rdb != nil && s.Redis != 1 {
					r.Errorf("not from Redis: %+v", s)
				}
				if err := sets.Set(r.ctx, 1, want); err != nil {
					r.Error(err)
				}
				if got, err := sets.Get(r.ctx, 1); err != nil || !bytes.Equal(got, want) { // with Redis a Set fills with the next Get
					r.Errorf("%d bytes, %v", len(got), err)
				}
				for who, c := range map[string]*probe[int64, []byte]{"loaded": loads, "read": reads, "set": sets} {
					if n := c.Stats().LocalTier.Bytes; n < test.least || n > test.least+1000 {
						r.Errorf("%s: an entry of %d bytes counts as %d", who, test.least, n)
					}
				}
			})
		})
	}
}

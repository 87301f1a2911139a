package cache_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A gcm seals with AES-GCM, and fails when told to.
type gcm struct {
	aead  cipher.AEAD
	fails atomic.Bool
}

func newGCM(key byte) *gcm {
	return &gcm{aead: redistest.Must(cipher.NewGCMWithRandomNonce(redistest.Must(aes.NewCipher([]byte(strings.Repeat(string(key), 16))))))}
}

var errSeal = errors.New("no key at hand")

func (g *gcm) Seal(plain, bound []byte) ([]byte, error) {
	if g.fails.Load() {
		return nil, errSeal
	}
	return g.aead.Seal(nil, nil, plain, bound), nil
}

func (g *gcm) Open(sealed, bound []byte) ([]byte, error) { return g.aead.Open(nil, nil, sealed, bound) }

func (g *gcm) set(o *cache.Options) { o.Seal = g }

func localOff(o *cache.Options) { o.Local.MaxBytes = -1 }

// Catches a value that stands in Redis in the clear, and processes that do not read each other's.
func TestWhatIsSealedIsReadByAllProcessesAndByNobodyElse(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source := newRows(r, 1)
		source.put(1, "a secret")
		c, other := open(r, source.source(), newGCM('k').set), open(r, source.source(), newGCM('k').set)
		c.gives(r, 1, "a secret")
		other.gives(r, 1, "a secret")
		absent := open(r, source.source(), newGCM('k').set, localOff)
		for range 2 { // the second one is stored
			absent.gives404(r, 2)
		}
		other.gives404(r, 2)
		if r.rdb == nil {
			return
		}
		if n := source.loads(1); n != 1 {
			r.Errorf("%d loads", n)
		}
		for id, least := range map[int64]int{1: 56 + 12 + 16 + len("a secret"), 2: 56 + 12 + 16} {
			if stored := r.rdb.Get(r.ctx, valueKey(id)).Val(); strings.Contains(stored, "secret") || len(stored) < least {
				r.Errorf("key %d: in Redis stands %q", id, stored)
			}
		}
		if err := c.Set(r.ctx, 1, "another"); err != nil {
			r.Error(err)
		}
		open(r, source.source(), newGCM('k').set).gives(r, 1, "another")
	})
}

// A null planted by somebody who can write to Redis would hide a row. What is not opened counts as
// unfit, is loaded, and replaced.
func TestWhatDoesNotOpenIsLoadedAnew(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "real", local: true}}, func(r *rig) {
		source := newRows(r, 1, 2)
		values := func(key int64, set func(*cache.Options)) string {
			open(r, source.source(), set).gives(r, key, "v1")
			stored := r.rdb.Get(r.ctx, valueKey(key)).Val()
			r.rdb.Del(r.ctx, valueKey(key))
			return stored
		}
		plainly := func(*cache.Options) {}
		absent := open(r, cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) { return "", cache.ErrNotFound }}, localOff)
		absent.gives404(r, 1)
		absent.gives404(r, 1)
		null := r.rdb.Get(r.ctx, valueKey(1)).Val()
		if len(null) != 56 {
			r.Fatalf("a null of %d bytes", len(null))
		}
		k := newGCM('k').set
		for name, planted := range map[string]string{
			"another key's":   values(2, k),
			"rotated away":    values(1, newGCM('o').set),
			"in the clear":    values(1, plainly),
			"a null":          null,
			"cut":             values(1, k)[:70],
			"of its own, new": "", // stays what the cache has stored
		} {
			own := values(1, k)
			if planted == "" {
				planted = own
			}
			if err := r.rdb.Set(r.ctx, valueKey(1), planted, time.Hour).Err(); err != nil {
				r.Fatal(err)
			}
			c := open(r, source.source(), k)
			got, err := c.Fetch(r.ctx, 1)
			if want := map[bool]uint64{true: 0, false: 1}[planted == own]; err != nil || got.Value != "v1" || c.Stats().Unfit != want || c.Stats().Loads != want {
				r.Errorf("%s: %+v, %v, %d unfit, %d loads", name, got, err, c.Stats().Unfit, c.Stats().Loads)
			}
			c.comesFrom(r, 1, r.near())
		}
	})
}

// Catches a value that goes to Redis in the clear, or a null that does, when there is no key.
func TestWhatCannotBeSealedStaysInTheProcess(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}}, func(r *rig) {
		source, seal := newRows(r, 1), newGCM('k')
		seal.fails.Store(true)
		c := open(r, source.source(), seal.set)
		c.gives(r, 1, "v1")
		for range 3 {
			c.gives404(r, 2)
		}
		if n := r.rdb.Exists(r.ctx, valueKey(1), valueKey(2)).Val(); n != 0 {
			r.Errorf("%d keys are stored", n)
		}
		if err := c.Set(r.ctx, 1, "v2"); !errors.Is(err, errSeal) {
			r.Errorf("Set: %v", err)
		}
	})
}

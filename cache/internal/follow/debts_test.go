package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/logonce"
)

// owing is debts of one cache, whose filter answers as a test says.
type owing struct {
	*debts
	cache *Cache
	batch int
	reply func() error
	mu    sync.Mutex
	told  []string // each call of the filter: the number of ids, or "all"
}

func owes(t *testing.T) *owing {
	o := &owing{cache: &Cache{Name: "product"}, reply: func() error { return nil }}
	o.cache.Ensure = func(_ context.Context, ids []string) error {
		o.called(fmt.Sprint(len(ids)))
		return o.reply()
	}
	o.cache.Distrust = func(context.Context) error {
		o.called("all")
		return o.reply()
	}
	o.debts = newDebts(t.Context(), logonce.New(slog.New(slog.NewTextHandler(io.Discard, nil)), ""))
	return o
}

func (o *owing) called(with string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = append(o.told, with)
}

// tells returns the calls so far.
func (o *owing) tells() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.told)
}

// applies owes what a batch has brought, as a follower does.
func (o *owing) applies(ids []string, all bool) {
	o.batch++
	o.owe(o.cache, o.batch, ids, all)
	o.wait()
}

// await waits until nothing is owed.
func (o *owing) await() {
	for {
		owed, turned := o.oldest()
		if owed == math.MaxInt {
			return
		}
		<-turned.Done()
	}
}

func ids(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint("id", i))
	}
	return all
}

var errAway = errors.New("away")

func TestAFilterIsToldOfWhatItHasNotConfirmed(t *testing.T) {
	for name, test := range map[string]struct {
		owe  func(o *owing)
		away int // so many calls fail
		told []string
	}{
		"all at once":                           {func(o *owing) { o.applies(ids(3), false) }, 0, []string{"3"}},
		"in the order of the batches":           {func(o *owing) { o.applies(ids(3), false); o.applies(ids(4), false) }, 1, []string{"3", "3", "4"}},
		"many, in parts that stay confirmed":    {func(o *owing) { o.applies(ids(1000), false) }, 0, []string{"512", "488"}},
		"again after a panic":                   {func(o *owing) { o.applies(ids(3), false) }, -1, []string{"3", "3"}},
		"that it has missed some":               {func(o *owing) { o.applies(nil, true) }, 2, []string{"all", "all", "all"}},
		"too many rows become all":              {func(o *owing) { o.applies(ids(3), false); o.applies(ids(mostOwed+1), false) }, 1, []string{"3", "3", "all"}},
		"a rebuild finds what was owed before":  {func(o *owing) { o.applies(ids(3), false); o.applies(ids(3), false); o.applies(nil, true) }, 1, []string{"3", "3", "all"}},
		"a filter that refuses rows abstains":   {func(o *owing) { o.applies(ids(3), false); o.applies(nil, true) }, 2, []string{"3", "3", "all"}},
		"a deaf filter is told of each row":     {func(o *owing) { o.cache.Deaf = true; o.applies(ids(3), false); o.applies(ids(4), true) }, 1, []string{"3", "3", "all", "4"}},
		"a rebuild may miss what is owed later": {func(o *owing) { o.applies(nil, true); o.applies(ids(3), false) }, 1, []string{"all", "all", "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := owes(t)
				defer o.close()
				calls := 0
				o.reply = func() error {
					switch calls++; {
					case test.away < 0 && calls == 1:
						panic("boom")
					case calls <= test.away:
						return errAway
					}
					return nil
				}
				test.owe(o)
				o.await()
				if told := o.tells(); !slices.Equal(told, test.told) || o.cache.owedSince.Load() != 0 {
					t.Errorf("told %q", told)
				}
				if n := o.cache.failures.Load(); n > 0 != (test.away != 0) {
					t.Errorf("%d failures", n)
				}
			})
		})
	}
}

// Defect: what is owed while a filter is being told is taken for told: the filter was rebuilt before these rows
// had committed, and denies them. Or the follower waits for a filter that does not answer, for each batch.
func TestWhatIsOwedWhileAFilterIsToldIsToldToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := owes(t)
		defer o.close()
		o.reply = func() error { time.Sleep(longest / 2); return nil }
		begin := time.Now()
		o.applies(nil, true)
		o.applies(ids(3), false)
		o.applies(nil, true)
		o.applies(ids(2), false)
		if waited := time.Since(begin); waited != patience {
			t.Errorf("a filter that does not answer holds up the feed for %v", waited)
		}
		o.await()
		if want := []string{"all", "all", "2"}; !slices.Equal(o.tells(), want) {
			t.Errorf("told %q, not %q", o.tells(), want)
		}
	})
}

// Defect: a position is stored when a filter is owed nothing at all, which never happens if it takes longer than
// the next batch: the database keeps its log until its disk is full.
func TestAFilterThatIsSlowerThanTheFeedConfirmsItsBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := owes(t)
		defer o.close()
		o.reply = func() error { time.Sleep(3 * time.Second); return nil }
		for n := range 20 {
			o.applies([]string{fmt.Sprint(n)}, false)
			time.Sleep(time.Second)
			if oldest, _ := o.oldest(); oldest < o.batch-6 {
				t.Errorf("batch %d is not confirmed after batch %d", oldest, o.batch)
			}
		}
		o.await()
	})
}

// Defect: a filter that does not heed its context is never told again, and nobody is told; and it keeps the
// follower from giving up its lease.
func TestAFilterThatHangsIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := owes(t)
		hangs := make(chan struct{})
		o.reply = func() error { <-hangs; return nil }
		o.applies(ids(1), false)
		time.Sleep(longest + time.Second)
		if n := o.cache.failures.Load(); n != 1 || len(o.tells()) != 2 {
			t.Errorf("%d failures, told %q", n, o.tells())
		}
		o.close()
		if o.cache.owedSince.Load() != 0 {
			t.Error("the cache of a follower that has ended is behind")
		}
		close(hangs)
	})
}

package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/logonce"
)

// owing is debts of one cache, whose filter answers as a test says.
type owing struct {
	*debts
	cache *Cache
	told  []string // each call of the filter: the number of ids, or "all"
	known map[string]bool
	reply func() error
}

func owes(t *testing.T) *owing {
	o := &owing{cache: &Cache{Name: "product"}, known: map[string]bool{}, reply: func() error { return nil }}
	o.cache.Ensure = func(_ context.Context, ids []string) error {
		o.told = append(o.told, fmt.Sprint(len(ids)))
		err := o.reply()
		for _, id := range ids {
			o.known[id] = o.known[id] || err == nil
		}
		return err
	}
	o.cache.Distrust = func(context.Context) (bool, error) {
		o.told = append(o.told, "all")
		return false, o.reply()
	}
	o.debts = newDebts(t.Context(), logonce.New(slog.New(slog.NewTextHandler(io.Discard, nil)), ""))
	return o
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
		"all at once":                           {func(o *owing) { o.owe(o.cache, ids(3), false) }, 0, []string{"3"}},
		"each once":                             {func(o *owing) { o.owe(o.cache, ids(3), false); o.owe(o.cache, ids(4), false) }, 1, []string{"3", "4"}},
		"many, in parts that stay confirmed":    {func(o *owing) { o.owe(o.cache, ids(1000), false) }, 0, []string{"512", "488"}},
		"again after a panic":                   {func(o *owing) { o.owe(o.cache, ids(3), false) }, -1, []string{"3", "3"}},
		"that it has missed some":               {func(o *owing) { o.owe(o.cache, nil, true) }, 2, []string{"all", "all", "all"}},
		"too many rows become all":              {func(o *owing) { o.owe(o.cache, ids(3), false); o.owe(o.cache, ids(mostOwed+1), false) }, 1, []string{"3", "all"}},
		"a rebuild finds what was owed before":  {func(o *owing) { o.owe(o.cache, ids(3), false); o.owe(o.cache, nil, true) }, 1, []string{"3", "all"}},
		"a rebuild may miss what is owed later": {func(o *owing) { o.owe(o.cache, nil, true); o.owe(o.cache, ids(3), false) }, 1, []string{"all", "all", "3"}},
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
				if paid := o.owing(); paid != nil {
					<-paid.Done()
				}
				if synctest.Wait(); !slices.Equal(o.told, test.told) || o.owing() != nil || len(o.of) > 0 {
					t.Errorf("told %q, owed %v", o.told, o.of)
				}
				if n := o.cache.failures.Load(); n > 0 != (test.away != 0) {
					t.Errorf("%d failures", n)
				}
			})
		})
	}
}

// Defect: what is owed while a filter is being told is taken for told: the filter was rebuilt before these rows
// had committed, and denies them.
func TestWhatIsOwedWhileAFilterIsToldIsToldToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := owes(t)
		defer o.close()
		o.reply = func() error { time.Sleep(time.Minute); return nil }
		begin := time.Now()
		o.owe(o.cache, nil, true)
		if waited := time.Since(begin); waited != firstTry {
			t.Errorf("a filter that does not answer holds up the feed for %v", waited)
		}
		o.owe(o.cache, ids(3), false)
		o.owe(o.cache, nil, true)
		o.owe(o.cache, ids(2), false)
		<-o.owing().Done()
		if want := []string{"all", "all", "2"}; !slices.Equal(o.told, want) {
			t.Errorf("told %q, not %q", o.told, want)
		}
	})
}

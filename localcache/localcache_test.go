package localcache_test

import (
	"errors"
	"testing"

	"github.com/levee-go/levee/localcache"
)

// The machinery has its tests in internal/tier; here is that what a user calls reaches it.

func open(t *testing.T, o localcache.Options) *localcache.Cache[string, int] {
	t.Helper()
	c, err := localcache.New[string, int](o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func finds(t *testing.T, c *localcache.Cache[string, int], want int, wantOK bool) {
	t.Helper()
	if v, ok := c.Get("a"); v != want || ok != wantOK {
		t.Errorf("Get returns %d, %v; want %d, %v", v, ok, want, wantOK)
	}
}

// A reader is slow: between its read and the end of its Fill the row has changed. Catches a mark
// that is taken after the load, or of another key.
func TestAFillThatAWriterOvertakesIsNotKept(t *testing.T) {
	for name, test := range map[string]struct {
		write  func(c *localcache.Cache[string, int])
		want   int
		wantOK bool
	}{
		"nobody writes": {func(*localcache.Cache[string, int]) {}, 1, true},
		"Delete":        {func(c *localcache.Cache[string, int]) { c.Delete("a") }, 0, false},
		"Clear":         {(*localcache.Cache[string, int]).Clear, 0, false},
		"Set":           {func(c *localcache.Cache[string, int]) { c.Set("a", 2, 8) }, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t, localcache.Options{})
			if v, err := c.Fill("a", func() (int, int, error) { test.write(c); return 1, 8, nil }); v != 1 || err != nil {
				t.Errorf("Fill returns %d, %v", v, err)
			}
			finds(t, c, test.want, test.wantOK)
		})
	}
}

func TestGetFindsNoValueThatWasDeletedOrReplaced(t *testing.T) {
	c := open(t, localcache.Options{})
	finds(t, c, 0, false)
	c.Set("a", 1, 8)
	c.Set("a", 2, 8)
	finds(t, c, 2, true)
	c.Delete("a")
	finds(t, c, 0, false)
	c.Set("a", 3, 8)
	c.Clear()
	finds(t, c, 0, false)
	if s := c.Stats(); s.Hits != 1 || s.Misses != 3 || s.Filled != 3 || s.Deletes != 1 || s.Flushes != 1 {
		t.Errorf("%+v", s)
	}
}

func TestALoadThatFailsKeepsNothing(t *testing.T) {
	c, down := open(t, localcache.Options{}), errors.New("down")
	if _, err := c.Fill("a", func() (int, int, error) { return 1, 8, down }); err != down {
		t.Errorf("got %v", err)
	}
	finds(t, c, 0, false)
}

func TestACacheThatIsOffOrClosedKeepsNothing(t *testing.T) {
	closed := open(t, localcache.Options{})
	closed.Close()
	for name, c := range map[string]*localcache.Cache[string, int]{"off": open(t, localcache.Options{MaxBytes: -1}), "closed": closed} {
		c.Set("a", 1, 8)
		if v, err := c.Fill("a", func() (int, int, error) { return 1, 8, nil }); v != 1 || err != nil {
			t.Errorf("%s: Fill returns %d, %v", name, v, err)
		}
		finds(t, c, 0, false)
		c.Delete("a")
		c.Clear()
		c.Close()
	}
	if c, err := localcache.New[string, int](localcache.Options{TTL: 1}); c != nil || err == nil {
		t.Errorf("got %v, %v", c, err)
	}
}

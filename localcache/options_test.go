package localcache_test

import (
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/localcache"
)

func TestNewNamesTheFieldThatCannotBe(t *testing.T) {
	for _, test := range []struct {
		o     localcache.Options
		field string
	}{
		{localcache.Options{MaxBytes: 1}, "MaxBytes"},
		{localcache.Options{MaxBytes: 1 << 50}, "MaxBytes"},
		{localcache.Options{MaxNullBytes: 1}, "MaxNullBytes"},
		{localcache.Options{MaxNullBytes: 1 << 50}, "MaxNullBytes"},
		{localcache.Options{TTL: -1}, "TTL"},
		{localcache.Options{TTL: time.Millisecond}, "TTL"},
		{localcache.Options{DistrustTTL: time.Millisecond}, "DistrustTTL"},
		{localcache.Options{HotKeys: -1}, "HotKeys"},
		{localcache.Options{HotKeys: 10_001}, "HotKeys"},
		{localcache.Options{MaxBytes: -1, TTL: -1}, "TTL"}, // off, but wrong all the same
	} {
		c, err := localcache.New[string, int](test.o)
		if c != nil || err == nil || !strings.HasPrefix(err.Error(), "localcache: "+test.field+" must be ") {
			t.Errorf("New(%+v) = %v, %v", test.o, c, err)
		}
	}
}

func TestTheSmallestOptionsWork(t *testing.T) {
	c := open[string, int](t, localcache.Options{
		MaxBytes: 64 << 10, MaxNullBytes: 64 << 10, TTL: 100 * time.Millisecond, DistrustTTL: 100 * time.Millisecond,
	})
	if !c.Fill(c.Mark("a"), "a", 1, 8, time.Hour) || !c.FillNull(c.Mark("b"), "b", time.Hour) {
		t.Error("a fill was not taken")
	}
}

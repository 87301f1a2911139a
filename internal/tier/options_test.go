package tier_test

import (
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/tier"
)

func TestNewNamesTheFieldThatCannotBe(t *testing.T) {
	for _, test := range []struct {
		o     tier.Options
		field string
	}{
		{tier.Options{MaxBytes: 1}, "MaxBytes"},
		{tier.Options{MaxBytes: 1 << 50}, "MaxBytes"},
		{tier.Options{MaxNullBytes: 1}, "MaxNullBytes"},
		{tier.Options{MaxNullBytes: 1 << 50}, "MaxNullBytes"},
		{tier.Options{TTL: -1}, "TTL"},
		{tier.Options{TTL: time.Millisecond}, "TTL"},
		{tier.Options{DistrustTTL: time.Millisecond}, "DistrustTTL"},
		{tier.Options{HotKeys: -1}, "HotKeys"},
		{tier.Options{HotKeys: 10_001}, "HotKeys"},
		{tier.Options{MaxBytes: -1, TTL: -1}, "TTL"}, // off, but wrong all the same
	} {
		c, err := tier.New[string, int](test.o)
		if c != nil || err == nil || !strings.HasPrefix(err.Error(), "localcache: "+test.field+" must be ") {
			t.Errorf("New(%+v) = %v, %v", test.o, c, err)
		}
	}
}

func TestTheSmallestOptionsWork(t *testing.T) {
	c := open[string, int](t, tier.Options{
		MaxBytes: 64 << 10, MaxNullBytes: 64 << 10, TTL: 100 * time.Millisecond, DistrustTTL: 100 * time.Millisecond,
	})
	if !c.Fill(c.Mark("a"), "a", 1, 8, time.Hour) || !c.FillNull(c.Mark("b"), "b", time.Hour) {
		t.Error("a fill was not taken")
	}
}

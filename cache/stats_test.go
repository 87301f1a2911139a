package cache_test

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/lock"
	"github.com/levee-go/levee/mutexrebuild"
)

// A counter that nobody explains raises no alarm, or a false one.
func TestEachCounterIsExplained(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/stats.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		name, body, _ := strings.Cut(section, "\n")
		sections[name] = body
	}
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\|.*\\|.*\\|.*\\|.*\\|$")
	for _, stats := range []any{cache.Stats{}, feed.Stats{}, cache.AuditStats{}, cache.ShadowStats{}, cache.LedgerStats{}, cache.FilterRebuild{}, localcache.Stats{}, mutexrebuild.Stats{}, breaker.Stats{}, bloom.Stats{}, lock.Stats{}} {
		of := reflect.TypeOf(stats)
		explained := map[string]bool{}
		for _, match := range row.FindAllStringSubmatch(sections[of.String()], -1) {
			explained[match[1]] = true
		}
		for _, field := range reflect.VisibleFields(of) {
			if !explained[field.Name] {
				t.Errorf("docs/reference/stats.md does not say what %v.%s counts, what is normal and when to worry", of, field.Name)
			}
			delete(explained, field.Name)
		}
		if len(explained) > 0 {
			t.Errorf("docs/reference/stats.md has fields that %v has not: %v", of, slices.Sorted(maps.Keys(explained)))
		}
	}
}

// An alarm on Unpublished must not ring at each 404.
func TestTheFirstMissOfAnAbsentKeyIsNotUnpublished(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		c := open(r, newRows(r).source())
		for key := range int64(20) {
			c.gives404(r, key)
			c.gives404(r, key)
		}
		if n := c.Stats().Unpublished; n != 0 {
			r.Errorf("%d counted", n)
		}
	})
}

package docs

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"testing"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/lock"
	"github.com/levee-go/levee/mutexrebuild"
)

// An option that no page names is found by those alone who read the source.
func TestEachOptionIsOnAPage(t *testing.T) {
	for _, of := range []struct {
		options any
		page    string
	}{
		{cache.Options{}, "docs/reference/options.md"},
		{localcache.Options{}, "docs/reference/options.md"},
		{mutexrebuild.Options{}, "docs/reference/options.md"},
		{breaker.Options{}, "docs/reference/options.md"},
		{bloom.Options{}, "docs/filter.md"},
		{lock.Options{}, "docs/locks.md"},
	} {
		page, err := os.ReadFile(filepath.Join(root, of.page))
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range reflect.VisibleFields(reflect.TypeOf(of.options)) {
			if !regexp.MustCompile("`[^`]*\\b" + field.Name + "\\b[^`]*`").Match(page) {
				t.Errorf("%s does not name %T.%s", of.page, of.options, field.Name)
			}
		}
	}
}

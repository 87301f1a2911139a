package metrics_test

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/metrics"
	"github.com/levee-go/levee/lock"
)

// A field that somebody adds to a Stats must not be forgotten here: each of them changes
// some metric, but for those that say what others say. docs/reference/stats.md names it beside the
// field.
func TestEachFieldIsAMetric(t *testing.T) {
	eachField(t, metrics.Caches, "Gets", "Breaker", "LocalTier.Hits", "LocalTier.Nulls", "LocalTier.Misses", "LocalTier.Deletes",
		"FilterRebuild", "LocalTier.Distrusted", "Rebuild.Waits", "Rebuild.InProcess")
	eachField(t, metrics.Breakers)
	eachField(t, metrics.Filters)
	eachField(t, metrics.Lockers)
}

func eachField[S cache.Stats | breaker.Stats | bloom.Stats | lock.Stats](t *testing.T, families []metrics.Family[S], but ...string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/reference/stats.md")
	if err != nil {
		t.Fatal(err)
	}
	var s S
	before := values(families, &s)
	var try func(of reflect.Type, name string, field reflect.Value)
	try = func(of reflect.Type, name string, field reflect.Value) {
		if slices.Contains(but, name) {
			return
		}
		if field.Kind() == reflect.Struct && field.Type() != reflect.TypeFor[cache.Histogram]() {
			for i := range field.NumField() {
				inner := field.Type().Field(i).Name
				if name != "" {
					inner = name + "." + inner
				}
				try(field.Type(), inner, field.Field(i))
			}
			return
		}
		switch field.Kind() {
		case reflect.Bool:
			field.SetBool(true)
		case reflect.Int, reflect.Int64, reflect.Int32:
			field.SetInt(1)
		case reflect.Uint64, reflect.Uint8:
			field.SetUint(1)
		case reflect.Float64:
			field.SetFloat(1)
		default:
			field.Set(reflect.ValueOf(cache.Histogram{Counts: []uint64{1}}))
		}
		var changed []string
		for metric, value := range values(families, &s) {
			if before[metric] != value {
				changed = append(changed, "`"+strings.ReplaceAll(metric, " ", "` `")+"`")
			}
		}
		if len(changed) != 1 {
			t.Errorf("%q show %s of %T", changed, name, s)
		} else if line := "\n| `" + name[strings.LastIndex(name, ".")+1:] + "` | " + changed[0] + " | "; !strings.Contains(section(string(page), of.String()), line) {
			t.Errorf("docs/reference/stats.md, %v: there is no line%s", of, line)
		}
		field.SetZero()
	}
	try(nil, "", reflect.ValueOf(&s).Elem())
	if after := values(families, &s); !maps.Equal(before, after) {
		t.Errorf("%v became %v", before, after)
	}
}

// section is what stands under a heading.
func section(page, heading string) string {
	_, rest, _ := strings.Cut(page, "\n## "+heading+"\n")
	text, _, _ := strings.Cut(rest, "\n## ")
	return text
}

// values are all that families say of a snapshot.
func values[S any](families []metrics.Family[S], s *S) map[string]float64 {
	all := map[string]float64{}
	for _, f := range families {
		switch {
		case f.Histogram != nil:
			all[f.Name] = float64(f.Histogram(s).Count())
		case f.Outcomes != nil:
			for _, o := range f.Outcomes {
				all[f.Name+" "+o.Name] = float64(o.Value(s))
			}
		default:
			all[f.Name] = f.Value(s)
		}
	}
	return all
}

package keys_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/levee-go/levee/internal/keys"
)

func TestFilterNamesAreWhatTheDocumentationSays(t *testing.T) {
	f := keys.BloomFilter("a{b}%")
	for _, test := range []struct{ got, want string }{
		{f.Record(), "levee:b1:{a%7Bb%7D%25}"},
		{f.Log(), "levee:b1:{a%7Bb%7D%25}:log"},
		{f.Rebuild(), "levee:b1:{a%7Bb%7D%25}:rebuild"},
		{f.Sums("0f"), "levee:b1:{a%7Bb%7D%25}:g:0f"},
		{f.Piece("0f", 12), "levee:b1:{a%7Bb%7D%25}:g:0f:12"},
		{f.Counters("0f", 12), "levee:b1:{a%7Bb%7D%25}:g:0f:c12"},
		{f.Tickets(), "levee:b1:{a%7Bb%7D%25}:tickets"},
		{f.Channel(), "levee:bloom:1:a{b}%"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

func TestFiltersOfDifferentNamesShareNoKey(t *testing.T) {
	seen := map[string]string{}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.StringMatching(`(:log|\}|\{|%7B|%|:|a){1,4}`), rapid.String()).Draw(t, "name")
		f := keys.BloomFilter(name)
		for _, key := range []string{f.Record(), f.Log(), f.Rebuild(), f.Sums("1"), f.Piece("1", 0), f.Counters("1", 0), f.Tickets(), f.Channel()} {
			if other, ok := seen[key]; ok && other != name {
				t.Fatalf("%q is a key of %q and of %q", key, name, other)
			}
			seen[key] = name
		}
	})
}

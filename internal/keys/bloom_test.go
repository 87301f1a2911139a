package keys_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/levee-go/levee/internal/keys"
)

func TestFilterNamesAreWhatTheDocumentationSays(t *testing.T) {
	f := keys.BloomFilter("a{b}%")
	for _, test := range []struct{ got, want string }{
		{f.Record(), "levee:b2:{a%7Bb%7D%25}"},
		{f.Log(), "levee:b2:{a%7Bb%7D%25}:log"},
		{f.Rebuild(), "levee:b2:{a%7Bb%7D%25}:rebuild"},
		{f.Compact(), "levee:b2:{a%7Bb%7D%25}:compact"},
		{f.Pieces("0f"), "levee:b2:{a%7Bb%7D%25}:s:0f"},
		{f.Under("").Record(), "levee:b2:{a%7Bb%7D%25}"},
		{f.Under("staging").Log(), "staging:levee:b2:{a%7Bb%7D%25}:log"},
		{f.Under("staging").Channel(), "staging:levee:bloom:2:a{b}%"},
		{f.Channel(), "levee:bloom:2:a{b}%"},
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
		for _, key := range []string{f.Record(), f.Log(), f.Rebuild(), f.Compact(), f.Pieces("1"), f.Channel()} {
			if other, ok := seen[key]; ok && other != name {
				t.Fatalf("%q is a key of %q and of %q", key, name, other)
			}
			seen[key] = name
		}
	})
}

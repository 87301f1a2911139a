package keys_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/levee-go/levee/internal/keys"
)

var kinds = []keys.LockKind{keys.Mutex, keys.ReadWrite, keys.Semaphore, keys.Stripe, keys.Once}

func TestLockNamesAreWhatTheDocumentationSays(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{keys.Lock("", keys.Mutex, "a")[0], "levee:l1:m:{a}"},
		{keys.Lock("shop", keys.Mutex, "a")[1], "shop:levee:l1:m:{a}:q"},
		{keys.Lock("", keys.ReadWrite, "{b}%")[3], "levee:l1:rw:{%7Bb%7D%25}:s"},
		{keys.Lock("", keys.Stripe, keys.StripeName("a", 3))[2], "levee:l1:st:{a:3}:w"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

// Two locks in one key would keep each other out, or worse; two slots would be
// refused by a cluster.
func TestLocksHaveKeysOfTheirOwnInOneSlot(t *testing.T) {
	type args struct {
		kind keys.LockKind
		name string
		i    int
	}
	seen := map[string]args{}
	part := rapid.OneOf(rapid.StringMatching(`(%7B|%|\{|\}|:|q|a|:q|:0){0,5}`), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		kind, name := rapid.SampledFrom(kinds).Draw(t, "kind"), part.Draw(t, "name")
		all := keys.Lock("", kind, name)
		for i, key := range all {
			a := args{kind, name, i}
			if other, ok := seen[key]; ok && other != a {
				t.Fatalf("%q is the key of %v and of %v", key, a, other)
			}
			seen[key] = a
			if name != "" && hashTag(key) != hashTag(all[0]) {
				t.Fatalf("%q and %q are in different slots", key, all[0])
			}
			if strings.Count(key, "{") != 1 {
				t.Fatalf("%q", key)
			}
		}
	})
}

// Locks that were said to share a slot and do not are refused by a cluster, and those that do
// and were not found would be asked for one by one.
func TestLocksShareASlotAsTheirKeysDo(t *testing.T) {
	bySlot := map[uint16]string{}
	shared := 0
	for i := range 3000 {
		record := keys.Lock("", keys.Mutex, strings.Repeat("{é", i%5)+string(rune('a'+i%26))+strconv.Itoa(i))[0]
		at := slot(hashTag(record))
		if other, ok := bySlot[at]; ok {
			shared++
			if !keys.LocksShareSlot([]string{record, other, record}) {
				t.Errorf("%q and %q are in slot %d", record, other, at)
			}
		}
		bySlot[at] = record
		if other := bySlot[at^1]; other != "" && keys.LocksShareSlot([]string{other, record}) {
			t.Errorf("%q is in slot %d, %q is not", record, at, other)
		}
	}
	if shared < 50 {
		t.Errorf("%d share a slot", shared)
	}
}

// A script of which one key was in another slot would be refused by a cluster,
// whatever the name is made of, and so would one whose prefix chose the slot.
func FuzzLockKeysAreInOneSlot(f *testing.F) {
	for _, name := range []string{"a", "{", "}", "{}", "{a}b", "a}{b", "%7B", "{{}}", "\x00\r\n", strings.Repeat("}{", 512)} {
		f.Add("", name)
		f.Add("shop", name)
	}
	f.Fuzz(func(t *testing.T, prefix, name string) {
		if name == "" || strings.ContainsAny(prefix, "{}") { // refused before
			return
		}
		for _, kind := range kinds {
			all := keys.Lock(prefix, kind, name)
			for _, key := range all[1:] {
				if slot(hashTag(key)) != slot(hashTag(all[0])) {
					t.Fatalf("%q and %q are in different slots", key, all[0])
				}
			}
			if again := keys.LockOf(all[0]); !slices.Equal(again, all) {
				t.Fatalf("%q became %q", all, again)
			}
			if slot(hashTag(all[0])) != slot(hashTag(keys.Lock("", keys.Mutex, name)[0])) {
				t.Fatalf("prefix %q or kind %q chooses the slot of %q", prefix, kind, name)
			}
		}
	})
}

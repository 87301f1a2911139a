package keys_test

import (
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/levee-go/levee/internal/keys"
)

func TestNamesAreWhatTheDocumentationSays(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{keys.Value("product", 0, "42"), "product:42"},
		{keys.Value("product", 3, "42"), "product:v3:42"},
		{keys.Value("product", 0, "v3:42"), "product:%763:42"},
		{keys.Value("product", 0, "v:42"), "product:v:42"},
		{keys.Value("product", 0, "a{b}%c"), "product:a%7Bb%7D%25c"},
		{keys.Value("product", 0, ""), "product:"},
		{keys.Lease("product:42"), "{product:42}:lock"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

// Two caches, schemas or ids that met in one key would read each other's
// values. Dropping the escape of a percent sign or of a leading "v1:" fails here.
func TestDifferentArgumentsGiveDifferentKeys(t *testing.T) {
	seen := map[string][3]any{}
	part := rapid.OneOf(rapid.StringMatching(`(v[0-9]{0,2}:|%76|%7B|%|\{|\}|:|1){0,4}`), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"a", "v1", "a.v1"}).Draw(t, "name")
		schema := rapid.IntRange(0, 12).Draw(t, "schema")
		id := part.Draw(t, "id")
		key := keys.Value(name, schema, id)
		args := [3]any{name, schema, id}
		if other, ok := seen[key]; ok && other != args {
			t.Fatalf("%q is the key of %q and of %q", key, args, other)
		}
		seen[key] = args
	})
}

// A script may only touch keys of one slot, so a value and its lease have to
// share theirs.
func TestAValueAndItsLeaseShareASlot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := keys.Value("n", rapid.IntRange(0, 3).Draw(t, "schema"), rapid.String().Draw(t, "id"))
		sameSlot(t, value)
	})
}

// Ids with braces, which would choose a slot if they stood in the key as they are,
// spread over the slots like others: a sixteenth of them has about its share. With
// the escape taken out all of them are in one.
func TestBracesInAnIDDoNotChooseItsSlot(t *testing.T) {
	const ids, shares = 100_000, 16
	var found [shares]int
	for i := range ids {
		key := keys.Value("product", 0, "{x}"+strconv.Itoa(i))
		found[int(slot(hashTag(key)))*shares/16384]++
	}
	for i, n := range found {
		if n > ids/shares*6/5 || n < ids/shares*4/5 {
			t.Errorf("share %d of the slots has %d of %d keys", i, n, ids)
		}
	}
}

// slot is the CRC16 that Redis Cluster uses, modulo the number of slots.
func slot(tag string) (crc uint16) {
	for _, b := range []byte(tag) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return crc % 16384
}

func FuzzKeys(f *testing.F) {
	for _, id := range []string{"", "}", "{}", "a}{b", "v1:x", "%76", "\x00\r\n", strings.Repeat("{", 512)} {
		f.Add(id, 0)
	}
	f.Fuzz(func(t *testing.T, id string, schema int) {
		if schema < 0 {
			return
		}
		sameSlot(t, keys.Value("n", schema, id))
	})
}

func sameSlot(t interface{ Fatalf(string, ...any) }, value string) {
	if hashTag(value) != hashTag(keys.Lease(value)) {
		t.Fatalf("the lease of %q is in another slot", value)
	}
}

// hashTag is the part of a key that Redis Cluster hashes: what stands between
// the first { and the first } after it, if that is not empty, else everything.
// (redis.io, cluster specification)
func hashTag(key string) string {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	return key
}

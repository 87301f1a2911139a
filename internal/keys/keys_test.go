package keys_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/levee-go/levee/internal/keys"
)

func TestNamesAreWhatTheDocumentationSays(t *testing.T) {
	product := keys.OfCache("product")
	for _, test := range []struct{ got, want string }{
		{product.Value(0, "42"), "levee:c1:{product:42}"},
		{product.Value(3, "42"), "levee:c1:{product:42}:v3"},
		{product.Value(0, "a{b}%c"), "levee:c1:{product:a%7Bb%7D%25c}"},
		{product.Value(0, ""), "levee:c1:{product:}"},
		{product.Lease("42"), "levee:c1:{product:42}:lock"},
		{product.Clears(), "levee:c1:{product}:clears"},
		{product.Messages(), "levee:cache:1:product"},
		{product.Under("").Messages(), "levee:cache:1:product"},
		{product.Under("staging").Value(3, "42"), "staging:levee:c1:{product:42}:v3"},
		{product.Under("staging").Clears(), "staging:levee:c1:{product}:clears"},
		{product.Under("staging").Messages(), "staging:levee:cache:1:product"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

// A test that writes out the name of a key asserts nothing of it any more once the names have
// changed: a key that no longer exists is never there. The tests of cache did so twice.
func TestNoTestWritesOutTheKeyOfAValue(t *testing.T) {
	written := []byte(keys.OfCache("").Value(0, "")) // levee:c1:{:}
	written = append([]byte{'"'}, written[:bytes.IndexByte(written, '{')+1]...)
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "keys_test.go" && strings.Contains(path, "internal/keys") {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, written) {
			t.Errorf("%s writes out a key: let internal/keys make it", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Two caches, schemas or ids that met in one key would read each other's values, or take
// each other's leases. Dropping the escape of a brace or of a percent sign fails here.
func TestDifferentArgumentsGiveDifferentKeys(t *testing.T) {
	type args struct {
		kind, name string
		schema     int
		id         string
	}
	seen := map[string]args{}
	part := rapid.OneOf(rapid.StringMatching(`(v[0-9]{0,2}|\}:v1|\}:lock|\}:clears|%7B|%7D|%|\{|\}|:|1){0,4}`), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"a", "v1", "a.v1"}).Draw(t, "name")
		schema := rapid.IntRange(0, 12).Draw(t, "schema")
		id := part.Draw(t, "id")
		c := keys.OfCache(name)
		for key, made := range map[string]args{
			c.Value(schema, id): {"value", name, schema, id},
			c.Lease(id):         {"lease", name, 0, id},
			c.Clears():          {kind: "clears", name: name},
		} {
			if other, ok := seen[key]; ok && other != made {
				t.Fatalf("%q is the key of %v and of %v", key, made, other)
			}
			seen[key] = made
		}
	})
}

// A script may only touch keys of one slot: the values of all schemas and the lease
// have to share theirs.
func TestTheKeysOfAnIDShareASlot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sameSlot(t, rapid.IntRange(0, 3).Draw(t, "schema"), rapid.String().Draw(t, "id"))
	})
}

func TestNamesThatNobodyCouldReadAreRefused(t *testing.T) {
	for _, name := range []string{"", " ", "\t", "\u00a0 ", "a\nb", "a\x00", "\x7f", "a\u0085"} {
		if keys.CheckName(name) == nil || keys.CheckCache(name) == nil {
			t.Errorf("%q is taken", name)
		}
	}
	for _, name := range []string{":", "a:b", "{a}", "a{", "}"} {
		if keys.CheckName(name) != nil || keys.CheckCache(name) == nil {
			t.Errorf("%q: of a filter %v, of a cache %v", name, keys.CheckName(name), keys.CheckCache(name))
		}
	}
	for _, name := range []string{"product", "a b", "ä", "a.v1", "%"} {
		if err := keys.CheckCache(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Ids with braces, which would choose a slot if they stood in the key as they are,
// spread over the slots like others: a sixteenth of them has about its share. With
// the escape taken out all of them are in one.
func TestBracesInAnIDDoNotChooseItsSlot(t *testing.T) {
	const ids, shares = 100_000, 16
	var found [shares]int
	for i := range ids {
		key := keys.OfCache("product").Value(0, "{x}"+strconv.Itoa(i))
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
		sameSlot(t, schema, id)
	})
}

func sameSlot(t interface{ Fatalf(string, ...any) }, schema int, id string) {
	c := keys.OfCache("n")
	tag := hashTag(c.Lease(id))
	for _, key := range []string{c.Value(0, id), c.Value(schema, id), c.Value(schema+1, id)} {
		if hashTag(key) != tag || strings.Count(key, "{") != 1 {
			t.Fatalf("%q and the lease of %q are in different slots", key, id)
		}
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

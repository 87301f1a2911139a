package cache

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/levee-go/levee/internal/redistest"
)

// A testSealer is AES-GCM whose nonce is a hash, so that the golden files stay as they are.
// Its key is public.
type testSealer struct{ fault func() error }

func (s testSealer) aead() cipher.AEAD {
	return redistest.Must(cipher.NewGCM(redistest.Must(aes.NewCipher(bytes.Repeat([]byte("k"), 32)))))
}

func (s testSealer) Seal(plain, bound []byte) ([]byte, error) {
	if s.fault != nil {
		return nil, s.fault()
	}
	nonce := sha256.Sum256(append(bytes.Clone(bound), plain...))
	return s.aead().Seal(nonce[:12:12], nonce[:12], plain, bound), nil
}

func (s testSealer) Open(sealed, bound []byte) ([]byte, error) {
	if s.fault != nil {
		return nil, s.fault()
	}
	if len(sealed) < 12 {
		return nil, errors.New("no nonce")
	}
	return s.aead().Open(nil, sealed[:12], sealed[12:], bound)
}

func sealed[V any](t *testing.T, f format[V], id string, e entry[V]) []byte {
	t.Helper()
	data, _, _, err := f.encode(id, &e)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := f.decode(id, data); !ok || got.null != e.null {
		t.Fatal("what is sealed does not open")
	}
	return data
}

// Somebody who can write to Redis, and knows the layout, makes headers and checksums as he
// likes. Each of the bytes here has a header that fits the place where it stands. Catches a field
// that is not bound, a null that anybody may plant, and bytes that are taken unsealed.
func TestSealedBytesThatWereTamperedWithAreAMiss(t *testing.T) {
	o := Options{Name: "product", MaxValue: 1000, Seal: testSealer{}}
	f := redistest.Must(newFormat[string](o, nil))
	life1 := life{created: goldenCreated, expires: goldenCreated + goldenTTL, cost: 5, epoch: goldenEpoch, more: &extra{tags: []uint32{7}, version: "v1"}}
	lamp := sealed(t, f, "1", entry[string]{value: "lamp", life: life1})
	chair := sealed(t, f, "2", entry[string]{value: "chair", life: life1})
	null := sealed(t, f, "1", entry[string]{life: life{null: true, created: goldenCreated, expires: goldenCreated + goldenTTL}})
	if bytes.Contains(lamp, []byte("lamp")) {
		t.Errorf("the value stands in %q", lamp)
	}
	refused := func(what string, f format[string], id string, data []byte) {
		t.Helper()
		if !f.fits(id, reseal(data)) {
			t.Errorf("%s: the test's own header does not fit", what)
		}
		if e, ok := f.decode(id, data); ok {
			t.Errorf("%s: read as %+v", what, e)
		}
	}
	behind := payloadAt(lamp)
	refused("swapped with another key's", f, "1", append(bytes.Clone(lamp[:behind]), chair[behind:]...))
	moved := bytes.Clone(chair)
	binary.BigEndian.PutUint64(moved[offDigest:], f.digest("1"))
	refused("moved to another key", f, "1", moved)
	for _, n := range []int{0, 1, 12, 28, len(lamp) - behind - 1} {
		refused("truncated", f, "1", bytes.Clone(lamp[:behind+n]))
	}
	refused("longer", f, "1", append(bytes.Clone(lamp), 0))
	for i := behind; i < len(lamp); i++ {
		flipped := bytes.Clone(lamp)
		flipped[i] ^= 1
		refused("flipped", f, "1", flipped)
	}
	for _, i := range []int{offKind, offTags, offVersionSize, offCreated + 7, offExpires + 7, offCost + 3, offEpoch + 7, headerSize, headerSize + tagBytes} {
		changed := bytes.Clone(lamp)
		switch changed[i] ^= 1; i {
		case offTags: // and as many bytes less
			changed = append(changed[:headerSize], changed[headerSize+tagBytes:]...)
		case offVersionSize:
			changed = changed[:len(changed)-1]
		case offKind:
			changed[i] = kindNull
		}
		refused("another header", f, "1", changed)
	}
	softened := bytes.Clone(lamp)
	softened[offTags] ^= hardFlag
	refused("a value made hard", f, "1", softened)
	untagged := bytes.Clone(lamp)
	untagged[offTags], untagged[offVersionSize] = 0, tagBytes+2
	refused("a tag made a part of the version", f, "1", untagged)
	emptied := bytes.Clone(null[:headerSize])
	refused("a null without its seal", f, "1", emptied)
	revived := bytes.Clone(null)
	revived[offKind] = kindValue
	refused("a null made a value", f, "1", revived)

	other := o
	other.Schema = 1
	bumped := bytes.Clone(lamp)
	bumped[offSchema+3] = 1
	refused("another schema's", redistest.Must(newFormat[string](other, nil)), "1", bumped)
	other = o
	other.Name = "tcudorp"
	renamed, g := bytes.Clone(lamp), redistest.Must(newFormat[string](other, nil))
	binary.BigEndian.PutUint64(renamed[offDigest:], g.digest("1"))
	refused("another cache's", g, "1", renamed)

	plain := o
	plain.Seal = nil
	open := redistest.Must(newFormat[string](plain, nil))
	unsealed := sealed(t, open, "1", entry[string]{value: "lamp", life: life1})
	refused("unsealed bytes, with a Sealer", f, "1", bytes.Clone(unsealed))
	unsealed[offCodec] |= sealedFlag
	refused("unsealed bytes that claim a seal", f, "1", unsealed)
	refused("sealed bytes, without a Sealer", open, "1", bytes.Clone(lamp))
	if open.isOfOtherType("1", lamp) || f.isOfOtherType("1", sealed(t, open, "1", entry[string]{value: "lamp", life: life1})) {
		t.Error("what is not sealed alike counts as a value of another type")
	}

	marked := bytes.Clone(lamp) // by Expire's script, which has no key
	marked[offMark] = 1
	if e, ok := f.decode("1", marked); !ok || !e.expired || e.value != "lamp" {
		t.Error("a marked value does not open")
	}
	// What nobody can see: the whole of an older value, put back. See SECURITY.md.
	if e, ok := f.decode("1", lamp); !ok || e.value != "lamp" {
		t.Error("the value itself does not open")
	}
}

// The digest of the header is no MAC: keys that have the same can be made. Catches a bound without
// the key itself.
func TestWhatIsSealedIsBoundToTheWholeKey(t *testing.T) {
	f := redistest.Must(newFormat[string](Options{Name: "product", MaxValue: 1000, Seal: testSealer{}}, nil))
	if bound := f.bound("42", make([]byte, headerSize)); !bytes.HasSuffix(bound, []byte("product:42")) {
		t.Errorf("it is bound to %q", bound)
	}
}

// MaxValue bounds what stands in Redis.
func TestMaxValueBoundsTheSealedBytes(t *testing.T) {
	f := redistest.Must(newFormat[string](Options{Name: "product", MaxValue: 100, Seal: testSealer{}}, nil))
	for length, fits := range map[int]bool{72: true, 73: false} {
		data, _, _, err := f.encode("1", &entry[string]{value: strings.Repeat("x", length)})
		if err != nil || (data != nil) != fits {
			t.Errorf("%d bytes: %d stored, %v", length, len(data), err)
		}
	}
}

func TestAPanicOfASealerIsContained(t *testing.T) {
	panics := testSealer{func() error { panic("bug in the Sealer") }}
	f := redistest.Must(newFormat[string](Options{Name: "product", MaxValue: 100, Seal: testSealer{}}, nil))
	data := sealed(t, f, "1", entry[string]{value: "lamp"})
	f.sealer = panics
	if _, ok := f.decode("1", data); ok {
		t.Error("it is read")
	}
	for _, null := range []bool{false, true} {
		data, _, _, err := f.encode("1", &entry[string]{value: "lamp", life: life{null: null}})
		var panicked *PanicError
		if data != nil || !errors.As(err, &panicked) {
			t.Errorf("%d bytes, %v", len(data), err)
		}
	}
}

// FuzzOpen: no bytes but those of Seal are read, under their own id and header.
func FuzzOpen(f *testing.F) {
	form := redistest.Must(newFormat[string](Options{Name: "product", MaxValue: 1 << 20, Seal: testSealer{}}, nil))
	own, _, _, _ := form.encode("42", &entry[string]{value: "lamp", life: life{created: 1, expires: 2}})
	f.Add("42", own)
	f.Add("42", own[:headerSize])
	f.Add("4", own)
	f.Add("", []byte{})
	f.Fuzz(func(t *testing.T, id string, data []byte) {
		if len(data) >= headerSize {
			data = fitting(form, id, data)
		}
		if e, ok := form.decode(id, data); ok && (id != "42" || !bytes.Equal(data[payloadAt(data):], own[headerSize:])) {
			t.Errorf("%q is read as %+v", data, e)
		}
	})
}

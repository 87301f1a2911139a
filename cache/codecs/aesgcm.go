package codecs

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"

	"github.com/levee-go/levee/cache"
)

// AESGCM seals values with AES-GCM, for cache.Options.Seal. Keys are 16, 24 or 32 random bytes,
// the same in all processes. The first key seals, and all keys open. To rotate keys, deploy the
// new key behind the old one, then in front of it, and drop the old one when the values that it
// has sealed are gone, after the TTL and the longer stale window; each step is a deployment. A
// value whose key is missing is a miss, so a key that leaked may be dropped at once, at the price
// of the loads.
//
// A value has a random nonce of 96 bits and takes 28 bytes more. Rotate before 2³² values are
// sealed with one key: with 1,000 loads a second over all processes that is after 49 days.
func AESGCM(keys ...[]byte) (cache.Sealer, error) {
	if len(keys) == 0 {
		return nil, errors.New("codecs: AESGCM needs a key")
	}
	var s aesgcm
	for i, key := range keys {
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("codecs: key %d has %d bytes: want 16, 24 or 32", i, len(key))
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, fmt.Errorf("codecs: key %d: %w", i, err)
		}
		s = append(s, aead)
	}
	return s, nil
}

// An aesgcm has a cipher for each key.
type aesgcm []cipher.AEAD

func (s aesgcm) Seal(plain, bound []byte) ([]byte, error) {
	return s[0].Seal(nil, nil, plain, bound), nil
}

func (s aesgcm) Open(sealed, bound []byte) (plain []byte, err error) {
	for _, aead := range s {
		if plain, err = aead.Open(nil, nil, sealed, bound); err == nil {
			return plain, nil
		}
	}
	return nil, err
}

package cache

// A Sealer encrypts what is stored in Redis, so that a reader of Redis learns no value and a
// writer of Redis cannot forge one. AESGCM of package cache/codecs makes one. Both methods are
// called concurrently.
//
// bound identifies what a value belongs to: the cache's name, the id, Schema, when the value was
// loaded, when its TTL ends and everything else in its header, encoded so that no two are alike.
// A Sealer authenticates it, as the additional data of an AEAD, and need not store it: Open gets
// the same bytes, unless somebody has changed the header or has stored the value under another
// key.
type Sealer interface {
	// Seal returns plain encrypted, in memory of its own. plain is empty for a null. If Seal
	// returns an error or panics, the value or null is returned to its caller and not stored.
	Seal(plain, bound []byte) ([]byte, error)
	// Open returns what Seal was given, in memory of its own. It returns an error if Seal did not
	// make sealed of it and bound, or made it with a key that is no longer known: the read is
	// then a miss.
	Open(sealed, bound []byte) ([]byte, error)
}

// sealedFlag, in the byte of the codec, says that the bytes behind the header are sealed.
const sealedFlag = 16

// codecByte returns the byte that says how this cache's values are stored.
func (f format[V]) codecByte() byte {
	if f.sealer != nil {
		return f.id | sealedFlag
	}
	return f.id
}

// seal returns payload as it is stored behind header: sealed, if there is a Sealer.
func (f format[V]) seal(id string, header, payload []byte) (sealed []byte, err error) {
	if f.sealer == nil {
		return payload, nil
	}
	defer f.contain(&err)
	return f.sealer.Seal(payload, f.bound(id, header))
}

// open undoes seal.
func (f format[V]) open(id string, header, sealed []byte) (payload []byte, err error) {
	if f.sealer == nil {
		return sealed, nil
	}
	defer f.contain(&err)
	return f.sealer.Open(sealed, f.bound(id, header))
}

// bound returns what a sealed payload belongs to: all that its header says, with tags and
// version, then name and id. It leaves out the mark, which a script sets, and the checksum, which
// covers the sealed bytes. The header says where tags and version end, and a name contains no
// colon, so no two are alike.
func (f format[V]) bound(id string, header []byte) []byte {
	bound := make([]byte, 0, len(header)+len(f.name)+1+len(id))
	bound = append(bound, header[:offSum]...)
	bound[offMark] = 0
	bound = append(bound, header[headerSize:]...)
	bound = append(bound, f.name...)
	bound = append(bound, ':')
	return append(bound, id...)
}

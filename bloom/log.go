package bloom

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// keepLog is how many adds the log in Redis keeps, about: some 5 MB. A process that
// is further behind loads the table anew, and a Rebuild that cannot see in it all
// that may not be committed yet waits until it is.
const keepLog = 1 << 17

// An entry is the name of an entry in the log: the server's clock in milliseconds,
// and a number within that. Later entries have greater ones. The zero entry comes
// before all.
type entry struct{ ms, seq uint64 }

func decodeEntry(s string) (entry, error) {
	a, b, ok := strings.Cut(s, "-")
	ms, err1 := strconv.ParseUint(a, 10, 63)
	seq, err2 := strconv.ParseUint(b, 10, 64)
	e := entry{ms, seq}
	if !ok || err1 != nil || err2 != nil || e == (entry{}) || e.String() != s {
		return entry{}, fmt.Errorf("bloom: %.40q is no entry of a log", s)
	}
	return e, nil
}

// String gives the name as Redis knows it, "" for the zero entry.
func (e entry) String() string {
	if e == (entry{}) {
		return ""
	}
	return strconv.FormatUint(e.ms, 10) + "-" + strconv.FormatUint(e.seq, 10)
}

func (e entry) before(other entry) bool {
	return e.ms < other.ms || e.ms == other.ms && e.seq < other.seq
}

// The log holds hashes, not ids and not positions: they mean the same in every
// generation, and tell nothing to those who read them.
const hashLen = 16

func encodeHashes(hashes []hash) []byte {
	b := make([]byte, 0, len(hashes)*hashLen)
	for _, h := range hashes {
		b = binary.LittleEndian.AppendUint64(b, h.a)
		b = binary.LittleEndian.AppendUint64(b, h.b)
	}
	return b
}

func decodeHashes(s string) ([]hash, error) {
	if len(s)%hashLen != 0 {
		return nil, fmt.Errorf("bloom: %d bytes of hashes", len(s))
	}
	hashes := make([]hash, 0, len(s)/hashLen)
	for b := []byte(s); len(b) > 0; b = b[hashLen:] {
		hashes = append(hashes, hash{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])})
	}
	return hashes, nil
}

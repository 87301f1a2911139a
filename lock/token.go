package lock

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"

	"github.com/levee-go/levee/internal/keys"
)

// A Token is a detached lock as text. Detach makes it, and Attach or Release takes it, in
// this process or in another that uses the same Redis; without Redis, in this process. It has no special characters, so
// that it fits in a URL or a header. Keep it secret: anyone who has it can release the
// lock.
type Token string

// A part of a token is one lock; LockAll makes several.
type part struct {
	Name    []byte `json:"n"`
	Record  []byte `json:"k"`
	Mode    string `json:"m"`
	Permits int    `json:"p,omitempty"`
	Owner   string `json:"o"`
	Fence   int64  `json:"f"`
}

const (
	tokenVersion = keys.LockLayout + "."            // names the key layout of the token's locks
	tokenRecord  = "levee:" + keys.LockLayout + ":" // part of the key of each lock's record
)

func makeToken(parts []part) Token {
	text, err := json.Marshal(parts)
	if err != nil {
		panic("lock: " + err.Error()) // strings and numbers
	}
	text = fmt.Appendf(text, "%08x", crc32.ChecksumIEEE(text))
	return Token(tokenVersion + base64.RawURLEncoding.EncodeToString(text))
}

// part returns the part of a token that describes g.
func (g *grant) part() part {
	return part{[]byte(g.name), []byte(g.record()), string(g.mode), g.permits, g.owner, g.fence}
}

func (t Token) parts() ([]part, error) {
	text, ok := strings.CutPrefix(string(t), tokenVersion)
	if !ok || len(text) > 1<<20 {
		return nil, ErrBadToken
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(data) < 8 {
		return nil, ErrBadToken
	}
	data, sum := data[:len(data)-8], data[len(data)-8:]
	var parts []part
	if fmt.Sprintf("%08x", crc32.ChecksumIEEE(data)) != string(sum) || json.Unmarshal(data, &parts) != nil || len(parts) == 0 {
		return nil, ErrBadToken
	}
	for _, p := range parts {
		known := []mode{exclusive, write, read, permit}
		// "g:" and an entry is the owner of a lock that has been granted and not claimed.
		if !slices.Contains(known, mode(p.Mode)) || p.Owner == "" || strings.HasPrefix(p.Owner, "g:") || p.Fence <= 0 || !strings.Contains(string(p.Record), tokenRecord) {
			return nil, ErrBadToken
		}
	}
	return parts, nil
}

// grant returns the grant that p describes, which is not attached yet.
func (p *part) grant(o *Options) *grant {
	t := targetOf(string(p.Name), keys.LockOf(string(p.Record)), mode(p.Mode), max(p.Permits, 1))
	return newGrant(&t, o, p.Owner, granted{fence: p.Fence, sent: time.Now()})
}

package lock

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"

	"github.com/levee-go/levee/internal/keys"
)

// A Token stands for a lock that was taken and is handed over: by Detach in one
// place, to Attach or Release in another, in this process or any other that uses
// the same Redis. It is text without special characters, for a URL or a header, and
// a secret in so far as whoever has it can give the lock back.
type Token string

// A part of a token is one lock; LockAll makes several.
type part struct {
	Name   []byte `json:"n"`
	Record []byte `json:"k"`
	Mode   string `json:"m"`
	Places int    `json:"p,omitempty"`
	Owner  string `json:"o"`
	Fence  int64  `json:"f"`
}

// The version of a token is that of the layout whose locks it stands for.
const tokenVersion = keys.LockLayout + "."

func makeToken(parts []part) Token {
	text, err := json.Marshal(parts)
	if err != nil {
		panic("lock: " + err.Error()) // strings and numbers
	}
	text = fmt.Appendf(text, "%08x", crc32.ChecksumIEEE(text))
	return Token(tokenVersion + base64.RawURLEncoding.EncodeToString(text))
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
		known := p.Mode == string(exclusive) || p.Mode == string(write) || p.Mode == string(read) || p.Mode == string(permit)
		if !known || p.Owner == "" || p.Fence <= 0 || !strings.Contains(string(p.Record), "levee:"+tokenKey) {
			return nil, ErrBadToken
		}
	}
	return parts, nil
}

const tokenKey = keys.LockLayout + ":"

func (p *part) hold(o *Options) *hold {
	record := string(p.Record)
	t := target{
		name: string(p.Name), mode: mode(p.Mode), places: max(p.Places, 1),
		keys: keys.LockOf(record),
	}
	return newHold(&t, o, p.Owner, reply{n: [4]int64{p.Fence}, sent: time.Now()})
}

// Detach ends this lease and returns a token that stands for its locks, for the
// time ttl from now, unless somebody attaches or releases it before: nobody renews
// it meanwhile. It is one round trip for each lock. The lease must have no other
// handles (Reenter) and a Locker's lock may be handed over as often as wanted; its
// fence stays.
//
// ttl is from 100 ms to 24 h, otherwise the error matches ErrConfig. If the lease
// was lost, it matches ErrLost. If Redis does not answer, it matches ErrUnavailable
// and the lease is over all the same, its locks being given back.
func (s *Lease) Detach(ctx context.Context, ttl time.Duration) (Token, error) {
	if ttl < minLease || ttl > maxLease {
		return "", badConfig("ttl must be from %v to %v, got %v", minLease, maxLease, ttl)
	}
	if s.c.hub == nil {
		return "", badConfig("the lock of a quorum cannot be handed over")
	}
	if err := s.loosen(); err != nil {
		return "", err
	}
	s.g.cancel(nil)
	parts, holds := make([]part, 0, len(s.g.holds)), slices.Clone(s.g.holds)
	for i, h := range s.g.holds {
		s.c.keeper.remove(h)
		// Another owner, so that a renewal that is still under way finds it gone.
		after := &hold{target: h.target, owner: s.c.owner(), fence: h.fence, lease: h.lease, hooks: h.hooks, taken: h.taken}
		r, err := s.c.store.renew(ctx, h, ceilMillis(ttl), 0, after.owner)
		if err == nil && r.what == "ok" && r.acked < h.replicas {
			err = ErrNotReplicated
		}
		if err == nil && r.what != "ok" {
			err = lost(verdict(r.what))
		}
		if err != nil {
			s.c.giveAllBack(ctx, append(holds, after)) // it has the one name or the other
			return "", err
		}
		holds[i] = after
		parts = append(parts, part{[]byte(h.name), []byte(h.record()), string(h.mode), h.places, after.owner, h.fence})
	}
	return makeToken(parts), nil
}

// loosen ends the handle if it is the only one.
func (s *Lease) loosen() error {
	s.g.k.mu.Lock()
	defer s.g.k.mu.Unlock()
	if err := s.errLocked(); err != nil {
		return err
	}
	if s.g.refs > 1 {
		return badConfig("the lease has %d other handles", s.g.refs-1)
	}
	s.done = true
	s.g.refs--
	return nil
}

// Attach takes over the locks that a token stands for, and renews them from now
// on with the Lease of the Locker's options. A token is taken once: afterwards, and
// when its time is over or its locks were given back, the error matches ErrNotHeld.
// A call that failed with ErrUnavailable may be repeated by the same Locker.
func (l *Locker) Attach(ctx context.Context, t Token) (*Lease, error) {
	parts, err := t.parts()
	if err != nil {
		return nil, err
	}
	o, err := l.options()
	if err != nil {
		return nil, err
	}
	if l.c.isClosed() {
		return nil, ErrClosed
	}
	if !l.c.beginAttach(t) {
		return nil, ErrNotHeld
	}
	defer l.c.endAttach(t)
	var holds []*hold
	for i := range parts {
		h, err := l.c.attach(ctx, parts[i].hold(&o), &o)
		if err != nil {
			if errors.Is(err, ErrNotHeld) { // then the token is of no more use
				l.c.giveAllBack(ctx, holds)
			}
			return nil, err
		}
		holds = append(holds, h)
	}
	for _, h := range holds {
		l.c.keeper.add(h)
	}
	return l.c.lease(ctx, holds...), nil
}

// attach makes a hold of what old stands for. The new owner's name follows from
// the old one's and the process, so that a repetition finds it.
func (c *core) attach(ctx context.Context, old *hold, o *Options) (*hold, error) {
	sum := sha256.Sum256([]byte(old.owner))
	heir := c.process + ":t" + hex.EncodeToString(sum[:12])
	if c.keeper.has(heir) {
		return nil, ErrNotHeld
	}
	r, err := c.store.renew(ctx, old, o.Lease, 0, heir)
	switch {
	case err != nil:
		return nil, err
	case r.what != "ok":
		return nil, &joined{ErrNotHeld, verdict(r.what)}
	case r.acked < o.Replicas:
		return nil, ErrNotReplicated
	}
	return newHold(&old.target, o, heir, reply{n: [4]int64{old.fence, r.n[0]}, sent: r.sent}), nil
}

// has tells whether the keeper renews a lease of this owner.
func (k *keeper) has(owner string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range k.heap {
		if h.owner == owner {
			return true
		}
	}
	return false
}

func (c *core) beginAttach(t Token) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attaching[t] {
		return false
	}
	c.attaching[t] = true
	return true
}

func (c *core) endAttach(t Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.attaching, t)
}

// Release gives back the locks that a token stands for, without attaching it. A
// second Release is nil as long as nobody else has taken the locks; of a token that
// no longer stands, because it was attached or its time is over, the error matches
// ErrNotHeld.
func (l *Locker) Release(ctx context.Context, t Token) error {
	parts, err := t.parts()
	if err != nil {
		return err
	}
	var errs []error
	for i := range parts {
		h := parts[i].hold(&l.o)
		what, err := l.c.store.release(ctx, &h.target, h.owner, h.fence, 0, false, 0)
		switch {
		case err != nil:
			errs = append(errs, err)
		case what != "ok" && what != "again":
			errs = append(errs, &joined{ErrNotHeld, verdict(what)})
		}
	}
	return errors.Join(errs...)
}

// Reenter returns another handle of the lease, for code further down that gives
// back what it takes: the locks are given back with the last handle. It asks
// nobody. The error is that of Err. Nothing else lets a holder in again: a second
// Lock waits, whoever asks.
func (s *Lease) Reenter() (*Lease, error) {
	s.g.k.mu.Lock()
	defer s.g.k.mu.Unlock()
	if err := s.errLocked(); err != nil {
		return nil, err
	}
	s.g.refs++
	return &Lease{c: s.c, g: s.g}, nil
}

package cachedebug

import (
	"context"

	"github.com/levee-go/levee/cache/internal/inside"
)

// An Inspection is the state of a key, see [Inspect]: its ID and RedisKey; the Filter's
// answer; what Local and Redis hold, or LocalUnknown; whether readers of this process
// wait (Loading), with the HeldError of a failed load; whether it is Leased, for LeaseLeft, and
// Awaited by another process; the Holds of writers; and whether it is Foreign, in an Outage, or
// has an invalidation that is Unconfirmed.
type Inspection = inside.Inspection

// A Standing is what one tier holds of a key: its State, "fresh", "stale", "fallback", "kept"
// or "dead"; whether it is a Null; its Age, the TTL that remains, and the time Left until it is
// dropped; its Bytes; and the Value, which nobody may change.
type Standing = inside.Standing

// A HotKey is a key that is read often: its ID, and the Share of recent Gets that were for it.
// The Share may be too high by Error.
type HotKey = inside.HotKey

// Inspect looks up the key whose text is id, to find a fault. It changes nothing, counts nothing
// and loads nothing. It reads Redis, in one round trip. The error matches cache.ErrInvalidKey if
// no key has this text, or cache.ErrUnavailable if Redis did not answer; in this case the
// Inspection contains what this process knows.
//
// With a Source.Key, and for keys that have a MarshalText but no UnmarshalText, the local tier
// cannot be read by text.
func Inspect(ctx context.Context, c Cache, id string) (Inspection, error) {
	return c.Inside().Inspect(ctx, id)
}

// TopKeys returns the keys that were read most in the last minutes, the hottest first: at most n
// of them, and none unless Options.Local.HotKeys is set. It finds them from a sample of the Gets,
// one in 64, whether these found a value or not. Without a local tier it returns none.
func TopKeys(c Cache, n int) []HotKey { return c.Inside().TopKeys(n) }

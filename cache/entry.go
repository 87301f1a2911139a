package cache

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// An entry is a value or a null (the knowledge that a key does not exist), and its times.
type entry[V any] struct {
	value V
	life
}

// A life is all that is known of an entry, except its value.
type life struct {
	epoch   uint64 // of the cache when the load began; first field, because a hit may read it
	created int64  // when it was read from the source, Unix milliseconds
	expires int64  // when its TTL ends, Unix milliseconds
	cost    uint32 // duration of the load, in milliseconds
	null    bool
	private bool   // not stored in Redis: the null of a key that is missed for the first time
	hard    bool   // never served past its TTL
	expired bool   // Cache.Expire has ended it: it is only a fallback
	more    *extra // nil: none
}

// An extra holds the parts of an entry that few values have.
type extra struct {
	looked  atomic.Uint64 // number of clears of tags after which the value was last found valid
	tags    []uint32      // digests of the tags
	version string        // that the source gave the value
}

// tag stores the digests of a value's tags.
func (e *life) tag(tags []string) {
	if len(tags) > 0 {
		e.more = &extra{tags: digests(tags)}
	}
}

// digests returns a 32-bit digest of each tag.
func digests(tags []string) []uint32 {
	digests := make([]uint32, len(tags))
	for i, tag := range tags {
		sum := fnv1a(fnvOffset, tag)
		digests[i] = uint32(sum ^ sum>>32)
	}
	return digests
}

func (x *extra) encodedSize() int {
	if x == nil {
		return 0
	}
	return len(x.tags)*tagBytes + len(x.version)
}

// encode writes the lengths of x into the header, which data holds, and appends x to data.
func (x *extra) encode(data []byte) []byte {
	if x == nil {
		return data
	}
	data[offTags] |= byte(len(x.tags))
	data[offVersionSize] = byte(len(x.version))
	for _, tag := range x.tags {
		data = binary.BigEndian.AppendUint32(data, tag)
	}
	return append(data, x.version...)
}

// payloadAt returns where the value begins in data, which has a header.
func payloadAt(data []byte) int {
	return headerSize + int(data[offTags]&^hardFlag)*tagBytes + int(data[offVersionSize])
}

// decodeExtra decodes the extra behind the header, and returns it and the bytes behind it. fits
// has checked that data is long enough.
func decodeExtra(data []byte) (more *extra, payload []byte) {
	between, payload := data[headerSize:payloadAt(data)], data[payloadAt(data):]
	if len(between) == 0 {
		return nil, payload
	}
	more = &extra{}
	for range data[offTags] &^ hardFlag {
		more.tags = append(more.tags, binary.BigEndian.Uint32(between))
		between = between[tagBytes:]
	}
	more.version = string(between)
	return more, payload
}

// version returns the version that the source gave the entry.
func (e *life) version() string {
	if e.more == nil {
		return ""
	}
	return e.more.version
}

// tags returns the digests of an entry's tags.
func (e *life) tags() []uint32 {
	if e.more == nil {
		return nil
	}
	return e.more.tags
}

// stamp sets the times of an entry that was read now. It drops the fraction of a millisecond from
// ttl: the difference of two rounded times could be longer than ttl.
func (e *life) stamp(now time.Time, ttl, cost time.Duration) {
	e.created = now.UnixMilli()
	e.expires = e.created + ttl.Milliseconds()
	e.cost = uint32(min(e.created-now.Add(-cost).UnixMilli(), math.MaxUint32)) // rounded so that began is not too late
}

// spread shortens the TTL by a random part of any size: values that one Warm has loaded must not
// expire together.
func (e *life) spread() {
	e.expires = e.created + shortened(e.ttl(), rand.Float64()).Milliseconds()
}

func (e *life) ttl() time.Duration {
	return time.Duration(e.expires-e.created) * time.Millisecond
}

// began returns when the load began, or up to a millisecond earlier.
func (e *life) began() time.Time { return time.UnixMilli(e.created - int64(e.cost)) }

// left returns how much of the TTL remains, from 0 to the whole TTL: the times may come from a
// host whose clock is off.
func (e *life) left(now time.Time) time.Duration {
	return min(max(time.UnixMilli(e.expires).Sub(now), 0), e.ttl())
}

// unstored keeps an entry out of Redis, and in this process for hold at most.
func (e *life) unstored(hold time.Duration) {
	e.expires, e.private, e.hard = e.created+max(hold, 0).Milliseconds(), true, true
}

// isUnstored reports whether unstored has been called with hold.
func (e *life) isUnstored(hold time.Duration) bool { return e.private && e.hard && e.ttl() <= hold }

// identity returns a comparable key that differs between a value and later ones of its key, and
// is the same in all tiers.
func (e *life) identity() any { return [3]int64{e.created, e.expires, int64(e.epoch)} }

// age returns how long ago the value was read from the source, as far as the clocks of the hosts
// agree.
func (e *entry[V]) age(now time.Time) time.Duration {
	if e == nil || e.created == 0 {
		return 0
	}
	return max(now.Sub(time.UnixMilli(e.created)), 0)
}

// past reports whether the TTL has ended.
func (e *entry[V]) past(now time.Time) bool {
	return e != nil && e.created != 0 && !now.Before(time.UnixMilli(e.expires))
}

// jittered shortens ttl by a random part, at most the share jitter, so that values that were
// stored together do not expire together. It never lengthens ttl, which is a bound.
func jittered(ttl time.Duration, jitter float64) time.Duration {
	return shortened(ttl, jitter*rand.Float64())
}

// shortened returns ttl less a share of it in [0, 1), but at least a millisecond: Redis keeps a
// key without a TTL for ever, and go-redis sends no TTL for 0.
func shortened(ttl time.Duration, share float64) time.Duration {
	return max(ttl-time.Duration(share*float64(ttl)), time.Millisecond)
}

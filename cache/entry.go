package cache

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// An entry is a value, or the knowledge that there is none, and its times.
type entry[V any] struct {
	value V
	life
}

// A life is what is known of an entry beside its value.
type life struct {
	epoch   uint64 // of the cache when the load began; in front, where a hit may look at it
	created int64  // when it was read from the source, Unix milliseconds
	expires int64  // when its TTL ends, Unix milliseconds
	cost    uint32 // what the load took, in milliseconds
	null    bool
	private bool   // not for Redis: the null of a key that is missed for the first time
	hard    bool   // dead at the end of its TTL
	expired bool   // Cache.Expire has ended it: it answers only for want of another
	more    *extra // nil if there is nothing more
}

// An extra is what few values have.
type extra struct {
	looked  atomic.Uint64 // how many clears of tags were known when none of them had ended the value
	tags    []uint32      // their digests
	version string        // in the source
}

// tag notes the tags of a value.
func (e *life) tag(tags []string) {
	if len(tags) > 0 {
		e.more = &extra{tags: digests(tags)}
	}
}

// digests are those of tags.
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

// encode notes x in the header that data is, and appends it.
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

// payloadAt is where the value begins in data, which has a header.
func payloadAt(data []byte) int {
	return headerSize + int(data[offTags]&^hardFlag)*tagBytes + int(data[offVersionSize])
}

// decodeExtra reads what encode has written, and returns what is behind it. data has room for
// it, see fits.
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

// stamp sets the times of an entry that was read now. What remains of ttl beyond
// whole milliseconds is left out: the difference of two rounded times could be
// longer than ttl.
func (e *life) stamp(now time.Time, ttl, cost time.Duration) {
	e.created = now.UnixMilli()
	e.expires = e.created + ttl.Milliseconds()
	e.cost = uint32(min(e.created-now.Add(-cost).UnixMilli(), math.MaxUint32)) // so that began is not too late
}

// spread takes a random part of any size off the TTL: what one Warm has loaded must not
// expire together.
func (e *life) spread() {
	e.expires = e.created + shortened(e.ttl(), rand.Float64()).Milliseconds()
}

func (e *life) ttl() time.Duration {
	return time.Duration(e.expires-e.created) * time.Millisecond
}

// began is when the load began, or up to a millisecond before.
func (e *life) began() time.Time { return time.UnixMilli(e.created - int64(e.cost)) }

// left is what remains of the TTL. The times may come from a host whose clock is
// off, so it is never less than nothing nor more than the TTL.
func (e *life) left(now time.Time) time.Duration {
	return min(max(time.UnixMilli(e.expires).Sub(now), 0), e.ttl())
}

// identity tells a value from a later one of its key, wherever it was read.
func (e *life) identity() any { return [3]int64{e.created, e.expires, int64(e.epoch)} }

// age is how long ago the value was read from the source, as far as the clocks
// of the hosts agree.
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

// jittered takes a random part off ttl, at most the share jitter, so that what
// was stored together does not expire together. It never adds: a TTL is a bound.
func jittered(ttl time.Duration, jitter float64) time.Duration {
	return shortened(ttl, jitter*rand.Float64())
}

// shortened is ttl less a share of it in [0, 1), but not less than a millisecond:
// Redis stores for ever what has no TTL, and go-redis sends none for 0.
func shortened(ttl time.Duration, share float64) time.Duration {
	return max(ttl-time.Duration(share*float64(ttl)), time.Millisecond)
}

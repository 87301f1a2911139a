package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/rebuild"
)

// An Entry is an argument of [Source.LoadEntry], by which the loader learns more about the value
// that it replaces and tells the cache more about the value that it returns. The loader may use
// it until it returns.
//
// # A value that has not changed
//
// Prev is the value that the load will replace, and Version is what an earlier load has set in
// its Entry: an ETag, a revision, a time. A loader that learns from the source that Prev is still
// valid returns [ErrNotModified]: Prev then gets a new TTL, as if it had been loaded. A source
// that keeps saying so keeps the value for ever: it is a sliding TTL, as the source wants it.
//
//	func load(ctx context.Context, key string, e *cache.Entry[Page]) (Page, error) {
//		page, etag, err := get(ctx, key, e.Version) // If-None-Match, unless it is empty
//		if err == errSame {
//			return page, cache.ErrNotModified
//		}
//		e.Version = etag
//		return page, err
//	}
//
// Prev is set if Redis has the value when it grants the lease: past its TTL, within the stale
// windows of Options, or before its end if it is refreshed early. Without these windows there is
// rarely a Prev. It is nil after an Invalidate, a Clear or an Expire. If an invalidation comes
// while the loader runs, its result is refused and it runs again, without Prev. Prev is also nil
// during a Write of the key, without Redis, and in a load of [Cache.Refresh], whose caller says
// that the value has changed. LoadMany gets no Prev.
//
// # A source that must not be called for a while
//
// If the error of a loader, also of Load and LoadMany, has a method RetryAfter() time.Duration
// (found by errors.As), the cache holds the error for that long and up to a fifth more, instead
// of for Options.Rebuild.ErrorHold. It holds such an error for a minute at most and for ErrorHold
// at least, unless ErrorHold is off, and for 10,000 keys at a time. Until then callers get the
// error, or an old value within StaleIfError; the error of a refresh prevents further refreshes.
// The error is held in this process only, and an invalidation of the key, by this process or a
// message of another, ends it.
type Entry[V any] struct {
	// Prev is the value that is replaced; nil: there is none. Without a Clone, callers share
	// whatever it refers to, and nobody may change that.
	Prev *V
	// Version belongs to Prev when the loader is called, and is empty without a Prev. The Version
	// that the loader leaves is stored with the value, up to 64 bytes; a longer one is not
	// stored. So a loader that returns a new value must set Version anew, or empty it: otherwise
	// the new value would carry the old version. With ErrNotModified an empty Version means the
	// version of Prev.
	Version string
	// TTL is the TTL of this value or, if the loader finds that the key does not exist, of this
	// null. It is shortened by Options.Jitter like any other. 0: as Source.TTL or Options.NullTTL
	// say. Negative: the value is returned and not stored. It is then not in Redis, and the value
	// that Redis has of the key ends; this process serves it for Options.Rebuild.ErrorHold, even
	// if Options.Local is off, so that simultaneous callers do not load one after another.
	TTL time.Duration
	// Hard says that this value is never served past its TTL, whatever the stale windows of
	// Options say and whatever fails: a token or a signed URL, say. With ErrNotModified it stays
	// set if it was set for Prev.
	Hard bool
	// Primary tells a loader that reads from replicas to read the primary now, because a replica
	// may not have the latest write: a Write of the key is running, or an invalidation, a Clear
	// or a ClearTags is younger than Options.ReplicaLag. During an outage of Redis nobody can
	// know of either; then Primary is set only if ReplicaLag is: a source that does not lag need
	// not get all reads of all processes at its primary at that moment. If Primary is set, there
	// is no Prev.
	Primary bool
	// Tags are further tags of this value, in addition to [Source.Tags]: nulls have no tags. With
	// ErrNotModified, nil means the tags of Prev.
	Tags []string

	unmodified *life // of Prev, after ErrNotModified
}

// prevOf returns the value that the load of r replaces: the one that begin.lua has compared,
// never one that a local tier has kept. It is nil if the loader must not rely on it.
func (l *loader[K, V]) prevOf(r *rebuild.Run) *entry[V] {
	if !r.Stands {
		return nil
	}
	e, ok := l.values.format.decode(r.ID, r.Seen)
	if !ok || e.null || e.expired {
		return nil
	}
	return e
}

// plainly loads a key by Source.Load.
func (l *loader[K, V]) plainly(ctx context.Context, key K, _ uint64) (value V, say *Entry[V], err error) {
	value, err = l.Load(ctx, key)
	return value, nil, err
}

// withEntry returns a function that loads the key of r by Source.LoadEntry. It copies all that it
// needs of r: an abandoned loader may outlive the run. The load begins in epoch.
func (l *loader[K, V]) withEntry(r *rebuild.Run) func(ctx context.Context, key K, epoch uint64) (V, *Entry[V], error) {
	prev := l.prevOf(r)
	primary := r.Held() || r.Purpose == rebuild.Degraded && l.o.ReplicaLag > 0 // a writer may stand behind the silence
	return func(ctx context.Context, key K, epoch uint64) (value V, say *Entry[V], err error) {
		say = &Entry[V]{Primary: primary || l.o.ReplicaLag > 0 && l.fleet.ClearedSince(epoch)}
		if prev != nil && (say.Primary || l.values.cleared(prev)) { // judged after epoch was read, which the loaded value carries
			prev = nil
		}
		if prev != nil {
			shown := l.values.own(prev)
			say.Prev, say.Version = &shown, prev.version()
		}
		value, err = l.LoadEntry(ctx, key, say)
		switch {
		case !errors.Is(err, ErrNotModified):
			return value, say, err
		case prev == nil:
			return value, say, fmt.Errorf("cache: LoadEntry has returned this without a Prev: %w", err)
		case say.Version == "":
			say.Version = prev.version()
		}
		say.Hard = say.Hard || prev.hard
		say.unmodified = &prev.life
		return prev.value, say, nil
	}
}

// applyEntry copies what the loader has set in its Entry to e. say is nil for other loaders.
func (l *loader[K, V]) applyEntry(id string, e *entry[V], say *Entry[V]) *entry[V] {
	if say == nil {
		return e
	}
	switch {
	case say.TTL > 0:
		e.expires = e.created + jittered(say.TTL, l.o.Jitter).Milliseconds()
	case say.TTL < 0:
		e.unstored(l.o.Rebuild.ErrorHold)
	}
	e.hard = e.hard || say.Hard
	if e.null {
		return e
	}
	tags := digests(say.Tags)
	if say.unmodified != nil {
		e.epoch = say.unmodified.epoch // the value was not loaded anew: a clear that this process learns of later still ends it
		if say.Tags == nil {
			tags = say.unmodified.tags()
		}
	}
	more := &extra{tags: slices.Concat(tags, e.tags()), version: say.Version}
	slices.Sort(more.tags)
	more.tags = slices.Compact(more.tags)
	if len(more.version) > maxVersion {
		l.log.Warn("a loader has given a version of more than 64 bytes, which is not stored", logonce.Name("key", id), "bytes", len(more.version))
		more.version = ""
	}
	if len(more.tags) > 0 || more.version != "" {
		e.more = more
	}
	return e
}

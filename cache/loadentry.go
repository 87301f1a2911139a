package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/levee-go/levee/internal/logonce"
)

// An Entry is what [Source.LoadEntry] gets beside its key, and what it may say beside the
// value that it returns. It is the loader's until that returns.
//
// # A value that has not changed
//
// Prev is the value that the load is to replace, and Version is what an earlier load left
// there with it: an ETag, a revision, a time. A loader that learns from the source that Prev
// still holds returns [ErrNotModified]: then Prev gets another life, with another TTL, as
// if it had been loaded. So a source that goes on to say so keeps the value for ever: that is
// a TTL that slides, and its owner's will.
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
// Prev is there where Redis has it at the moment of the grant of the lease: past its TTL,
// within the stale windows of Options, or before its end if it is refreshed early. Without
// the windows there is rarely one. It is nil after an Invalidate, a Clear or an Expire, and
// an invalidation while the loader runs refuses what that brings: it runs again, without
// Prev. It is nil beside a Write of the key, without Redis, and when [Cache.Refresh] loads,
// since its caller says that the value has changed. LoadMany gets none.
//
// # A source that wants to be left alone
//
// An error of any loader, of Load and LoadMany too, that has a method RetryAfter()
// time.Duration (errors.As finds it) is held for that long and up to a fifth more, where
// other errors are held for Options.Rebuild.ErrorHold: for a minute at the most, for at least
// ErrorHold, unless that is off, and for 10,000 keys at a time. Callers get the error until
// then, or an old value within StaleIfError; the error of a refresh keeps refreshes away. It is
// held in this process alone, and an invalidation of the key, by this process or a message
// of another, ends it.
type Entry[V any] struct {
	// Prev is the value that is replaced; nil: there is none. What it leads to may be
	// shared, without a Clone, and nobody may change it.
	Prev *V
	// Version is what came with Prev, empty without. What the loader leaves here is stored
	// with the value, up to 64 bytes; a longer one is not. So a loader that returns
	// a new value sets it anew, or empties it: the old version would pass for that of the
	// new value. Beside ErrNotModified an empty one means that of Prev.
	Version string
	// TTL is that of this value or, if the loader finds that there is none, of this null. It
	// is shortened by Options.Jitter as others are. 0: as Source.TTL or Options.NullTTL
	// say. Negative: answer, and do not store. That is not in Redis then, and what Redis has
	// of the key ends; this process answers with it for Options.Rebuild.ErrorHold, also where
	// Options.Local is off, so that callers that come together do not load one after another.
	TTL time.Duration
	// Hard says that this value is never served past its TTL, whatever the stale windows of
	// Options say and whatever fails: a token or a signed URL, say. Beside ErrNotModified it
	// stays so if Prev was.
	Hard bool
	// Primary says that a replica may not have what a writer has written, so that a loader
	// which reads from replicas had better read the primary now: a Write of the key is under
	// way, or an invalidation, a Clear or a ClearTags is younger than Options.ReplicaLag. During an outage
	// of Redis nobody can know of either. Then Primary is set if ReplicaLag is, and not
	// without: a source that does not lag need not have all reads of all processes at its
	// primary in just that moment. There is no Prev beside it.
	Primary bool
	// Tags are further tags of this value, beside those of [Source.Tags]: nulls have none. Beside
	// ErrNotModified nil means those that Prev has.
	Tags []string

	unmodified *life // of Prev, if it gets another one
}

// prevOf returns the value that the load of j replaces: what begin.lua has compared, and
// never what a local tier has kept. It is nil if nobody may go by it.
func (c *Cache[K, V]) prevOf(j *job[K, V]) *entry[V] {
	if !j.stands {
		return nil
	}
	e, ok := c.format.decode(j.id, j.seen)
	if !ok || e.null || e.expired {
		return nil
	}
	return e
}

// plainly is a load by Source.Load.
func (c *Cache[K, V]) plainly(ctx context.Context, key K, _ uint64) (value V, say *Entry[V], err error) {
	value, err = c.source.Load(ctx, key)
	return value, nil, err
}

// withEntry returns the load of a job by Source.LoadEntry. It has all that it needs of the job:
// a loader that is left behind may run on beside it. The load begins in epoch.
func (c *Cache[K, V]) withEntry(j *job[K, V]) func(ctx context.Context, key K, epoch uint64) (V, *Entry[V], error) {
	prev, primary := c.prevOf(j), j.primary
	return func(ctx context.Context, key K, epoch uint64) (value V, say *Entry[V], err error) {
		say = &Entry[V]{Primary: primary || c.o.ReplicaLag > 0 && c.fleet.ClearedSince(epoch)}
		if prev != nil && (say.Primary || c.cleared(prev)) { // judged after epoch was read, which what is loaded carries
			prev = nil
		}
		if prev != nil {
			shown := c.own(prev)
			say.Prev, say.Version = &shown, prev.version()
		}
		value, err = c.source.LoadEntry(ctx, key, say)
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

// said gives e what its loader has said of it; nil: nothing.
func (c *Cache[K, V]) said(id string, e *entry[V], say *Entry[V]) *entry[V] {
	if say == nil {
		return e
	}
	switch {
	case say.TTL > 0:
		e.expires = e.created + jittered(say.TTL, c.o.Jitter).Milliseconds()
	case say.TTL < 0:
		e.unstored(c.o.Rebuild.ErrorHold)
	}
	e.hard = e.hard || say.Hard
	if e.null {
		return e
	}
	tags := digests(say.Tags)
	if say.unmodified != nil {
		e.epoch = say.unmodified.epoch // nobody has loaded it anew: a clear of which this process learns later still ends it
		if say.Tags == nil {
			tags = say.unmodified.tags()
		}
	}
	more := &extra{tags: slices.Concat(tags, e.tags()), version: say.Version}
	slices.Sort(more.tags)
	more.tags = slices.Compact(more.tags)
	if len(more.version) > maxVersion {
		c.log.Warn("a loader has given a version of more than 64 bytes, which is not stored", logonce.Name("key", id), "bytes", len(more.version))
		more.version = ""
	}
	if len(more.tags) > 0 || more.version != "" {
		e.more = more
	}
	return e
}

// version is what a source has said of an entry's version.
func (e *life) version() string {
	if e.more == nil {
		return ""
	}
	return e.more.version
}

// tags are the digests of an entry's tags.
func (e *life) tags() []uint32 {
	if e.more == nil {
		return nil
	}
	return e.more.tags
}

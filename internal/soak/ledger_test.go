package soak

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/cache/feed"
)

// commits is a feed of all rows that anybody commits, for the Ledgers: each reads it from its present on, and
// nobody keeps it for them.
type commits struct{ db *redis.Client }

// commitTold counts a row up, and tells commits.
var commitTold = redis.NewScript(commitRow + `return version`)

func (commits) Name() string { return "commits" }

func (f commits) Open(ctx context.Context, _ feed.Position) (feed.Stream, error) {
	newest, err := f.db.XRevRangeN(ctx, "commits", "+", "-", 1).Result()
	s := &commitStream{f.db, "0-0"}
	if len(newest) > 0 {
		s.last = newest[0].ID
	}
	return s, err
}

type commitStream struct {
	db   *redis.Client
	last string
}

func (s *commitStream) Next(ctx context.Context) (feed.Batch, error) {
	streams, err := s.db.XRead(ctx, &redis.XReadArgs{Streams: []string{"commits", s.last}, Count: 100, Block: 100 * time.Millisecond}).Result()
	if err != nil && err != redis.Nil {
		return feed.Batch{}, err
	}
	var b feed.Batch
	for _, stream := range streams {
		for _, entry := range stream.Messages {
			b.Changes = append(b.Changes, feed.Change{Table: "product", Kind: feed.Updated, New: feed.Row{"id": number(entry.Values["id"])}, Key: []string{"id"}})
			s.last = entry.ID
		}
	}
	return b, nil
}

func (*commitStream) Confirm(context.Context, feed.Position) error { return nil }

func (*commitStream) Close() error { return nil }

// ages are the times after which a Ledger looks.
var ages = [...]string{"1 s", "2 s", "10 s", "60 s"}

// A verdict is what the Ledgers have counted, by age.
type verdict struct {
	Looked, Old     [len(ages)]uint64
	Failed, Skipped uint64
}

func (v *verdict) add(s cache.LedgerStats) {
	for i := range ages {
		v.Looked[i] += [...]uint64{s.Looked1s, s.Looked2s, s.Looked10s, s.Looked60s}[i]
		v.Old[i] += [...]uint64{s.Old1s, s.Old2s, s.Old10s, s.Old60s}[i]
	}
	v.Failed, v.Skipped = v.Failed+s.Failed, v.Skipped+s.Skipped
}

// An oldValue is what a Ledger has found at one look, or a read too late, as a process reports it.
type oldValue struct {
	Key            int64
	Cached, Source int64 // versions
	Tier           string
	Age            time.Duration // since the value was loaded
	Since          time.Time     // when it was first seen to differ
	After          time.Duration // one of ages
	Found          time.Time
	Newest         confirmation // of the row, read after the look
	Broken         bool         // the newest confirmation forbids the value
	Read           bool         // by a caller: Since is the confirmation of the newest version
}

func (v verdict) String() string {
	text := "Ledgers:"
	for i, age := range ages {
		text += fmt.Sprintf(" %d of %d old after %s,", v.Old[i], v.Looked[i], age)
	}
	return text + fmt.Sprintf(" %d looks failed, %d changes skipped", v.Failed, v.Skipped)
}

// ledger watches the process's cache, in Redis and in its memory, for every commit of every process.
func (s *service) ledger() (*audit.Ledger[int64, product], error) {
	load := func(ctx context.Context, id int64) (product, error) {
		version, err := s.db.Get(ctx, row(id)).Int64()
		return product{id, version}, err
	}
	return audit.NewLedger(s.cache, load, audit.LedgerOptions[int64, product]{Share: 1, Feed: commits{s.db}, Old: s.old})
}

// mostFound is how many old values a report tells of; those after 60 s are told in any case.
const mostFound = 5000

// old notes an old value, and compares the Ledger with the judge of reads: that one may only know of less, since
// a write that is not confirmed promises nothing.
func (s *service) old(v audit.StaleValue[int64, product]) {
	newest, err := s.confirmed(context.Background(), v.Key)
	found := oldValue{v.Key, v.Cached.Version, v.Source.Version, v.Tier.String(), v.Age, v.Since, v.After, time.Now(), newest, false, false}
	found.Broken = err == nil && breaks(v, newest, found.Found)
	s.note(func(r *report) { r.found(found) })
}

// breaks reports whether the newest confirmation of a row forbids an old value that was found by now.
func breaks(v audit.StaleValue[int64, product], newest confirmation, now time.Time) bool {
	switch {
	case v.Cached.Version >= newest.Version:
		return false
	case v.Tier == cache.TierRedis && !newest.Cleared:
		return newest.Since.Before(v.Since)
	}
	return now.Sub(newest.Since) > bound+time.Second // Ledger and judge have looked at different moments
}

func (r *report) found(v oldValue) {
	if v.Broken {
		r.Broken++
	}
	if len(r.Found) >= mostFound && v.After < time.Minute {
		r.Untold++
		return
	}
	r.Found = append(r.Found, v)
}

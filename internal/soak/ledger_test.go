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
var commitTold = redis.NewScript(`
redis.call('XADD', 'commits', 'MAXLEN', '~', 10000, '*', 'id', ARGV[1])
return redis.call('INCR', KEYS[1])`)

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

// mostFound is how many old values a report tells of.
const mostFound = 100

// old notes an old value, and compares the Ledger with the judge of reads: that one may only know of less, since
// a write that is not confirmed promises nothing.
func (s *service) old(v audit.StaleValue[int64, product]) {
	newest, err := s.confirmed(context.Background(), v.Key)
	late := time.Since(newest.since)
	broken := err == nil && v.Cached.Version < newest.version
	if v.Tier == cache.TierRedis && !newest.cleared {
		broken = broken && newest.since.Before(v.Since)
	} else {
		broken = broken && late > bound+time.Second // Ledger and judge have looked at different moments
	}
	s.note(func(r *report) {
		if broken {
			r.Broken++
		}
		if len(r.Found) < mostFound {
			r.Found = append(r.Found, fmt.Sprintf("old after %v in %v: %d since %v, cached %d of %d, confirmed %d %v ago; followed %v, broken %v",
				v.After, v.Tier, v.Key, v.Since.Format(time.TimeOnly), v.Cached.Version, v.Source.Version, newest.version, late, followed(v.Key), broken))
		}
	})
}

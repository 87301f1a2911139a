package soak

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache/feed"
)

// changes is a feed of the rows that nobody writes through the cache. Its log is a stream in the database,
// with the number of a change as the id of its entry; the database keeps what is not confirmed, unless
// somebody cuts the log off.
type changes struct{ db *redis.Client }

func followed(id int64) bool { return id%4 == 3 }

// commitLogged counts a row up and logs the change, and returns the row's version and the number of the change.
var commitLogged = redis.NewScript(commitRow + `
local number = redis.call('INCR', 'changes:number')
redis.call('XADD', 'changes', number .. '-0', 'id', ARGV[1], 'version', version)
return {version, number}`)

// cutOff throws the whole log away: who has not read all of it has lost its position.
var cutOff = redis.NewScript(`
redis.call('SET', 'changes:cut', redis.call('GET', 'changes:number') or '0')
return redis.call('DEL', 'changes')`)

// confirmChanges never goes back: a follower that is taken over may confirm late. A change whose writer did not
// wait for it becomes a confirmed one, see settle.
var confirmChanges = redis.NewScript(`
for _, entry in ipairs(redis.call('XRANGE', 'changes', '-', ARGV[1] .. '-0')) do
  local change = 'change:' .. entry[2][2] .. ':' .. entry[2][4]
  redis.call('HSETNX', change, 'fed', ARGV[2])
  if redis.call('HGET', change, 'confirmed') == '0' then
    redis.call('HSET', change, 'confirmed', 1)
    redis.call('HINCRBY', 'changes:counted', 'unconfirmed', -1)
    redis.call('HINCRBY', 'changes:counted', 'confirmed', 1)
  end
end
if tonumber(ARGV[1]) > tonumber(redis.call('GET', 'changes:confirmed') or '0') then
  redis.call('SET', 'changes:confirmed', ARGV[1])
  redis.call('XTRIM', 'changes', 'MINID', ARGV[1] .. '-1')
end
return 1`)

func (changes) Name() string { return "soak" }

func (f changes) Open(ctx context.Context, from feed.Position) (feed.Stream, error) {
	s := &changeStream{db: f.db}
	if from.Text == "" {
		last, err := f.number(ctx, "changes:number")
		s.last = last
		return s, err
	}
	s.last = int64(from.Order)
	return s, s.lost(ctx)
}

func (f changes) number(ctx context.Context, name string) (int64, error) {
	n, err := f.db.Get(ctx, name).Int64()
	if err == redis.Nil {
		err = nil
	}
	return n, err
}

type changeStream struct {
	db   *redis.Client
	last int64
}

func (s *changeStream) lost(ctx context.Context) error {
	cut, err := changes{s.db}.number(ctx, "changes:cut")
	if err == nil && s.last < cut {
		err = feed.ErrPositionLost
	}
	return err
}

func (s *changeStream) Next(ctx context.Context) (feed.Batch, error) {
	streams, err := s.db.XRead(ctx, &redis.XReadArgs{Streams: []string{"changes", strconv.FormatInt(s.last, 10) + "-0"}, Count: 100, Block: 100 * time.Millisecond}).Result()
	if err != nil && err != redis.Nil {
		return feed.Batch{}, err
	}
	if err := s.lost(ctx); err != nil { // after the read: what it has missed was cut off before
		return feed.Batch{}, err
	}
	var b feed.Batch
	for _, stream := range streams {
		for _, entry := range stream.Messages {
			id := number(entry.Values["id"])
			b.Changes = append(b.Changes, feed.Change{Table: "product", Kind: feed.Updated, New: feed.Row{"id": id}, Key: []string{"id"}})
			s.last, _ = strconv.ParseInt(entry.ID[:len(entry.ID)-len("-0")], 10, 64)
		}
	}
	b.Position = feed.Position{Text: strconv.FormatInt(s.last, 10), Order: uint64(s.last)}
	return b, nil
}

func (s *changeStream) Confirm(ctx context.Context, p feed.Position) error {
	return confirmChanges.Run(ctx, s.db, nil, int64(p.Order), time.Now().UnixMicro()).Err()
}

func (s *changeStream) Close() error { return nil }

// writeBeside commits without a word to the cache, and waits until the follower has confirmed the change.
func (s *service) writeBeside(ctx context.Context, id int64) (version int64, confirmed bool) {
	made, err := commitLogged.Run(ctx, s.db, []string{row(id)}, id, byFeed, s.name).Int64Slice()
	if err != nil {
		return 0, false
	}
	for ctx.Err() == nil {
		if last, err := (changes{s.db}).number(ctx, "changes:confirmed"); err == nil && last >= made[1] {
			return made[0], true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return made[0], false
}

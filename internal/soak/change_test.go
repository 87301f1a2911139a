package soak

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// commitRow counts a row up, tells commits, and records the change in the database: which kind of write made it,
// in which process, and when. The record lives for longer than a value can be old.
const commitRow = `
redis.call('XADD', 'commits', 'MAXLEN', '~', 10000, '*', 'id', ARGV[1])
local version = redis.call('INCR', KEYS[1])
local now, change = redis.call('TIME'), 'change:' .. ARGV[1] .. ':' .. version
redis.call('HSET', change, 'kind', ARGV[2], 'by', ARGV[3], 'at', now[1] .. string.format('%06d', tonumber(now[2])))
redis.call('EXPIRE', change, 1800)
redis.call('HINCRBY', 'changes:counted', 'all', 1)
`

// recordEnd adds to the record of a change how its write ended. What the feed has confirmed already is confirmed.
var recordEnd = redis.NewScript(`
local change = 'change:' .. ARGV[1] .. ':' .. ARGV[2]
local confirmed = ARGV[3] == '' or redis.call('HEXISTS', change, 'fed') == 1
redis.call('HSET', change, 'error', ARGV[3], 'ended', ARGV[4], 'confirmed', confirmed and 1 or 0)
redis.call('HINCRBY', 'changes:counted', confirmed and 'confirmed' or 'unconfirmed', 1)
return 1`)

// settle records how the write of a version ended and, if err is nil, that nobody may read an older one from now
// on. A version of 0 was not committed, as far as its writer knows.
func (s *service) settle(id, version int64, err error, cleared bool) {
	if version == 0 {
		return
	}
	ctx, now, text := context.Background(), time.Now().UnixMicro(), ""
	if err != nil {
		text = err.Error()
	} else {
		confirm.Run(ctx, s.db, []string{"confirmed:" + row(id)}, version, now, cleared)
	}
	recordEnd.Run(ctx, s.db, nil, id, version, text, now)
}

// A change is what the database has recorded of one.
type change struct {
	version   int64
	kind, by  string
	at        time.Time // of its commit, on the clock of the database
	ended     time.Time // when its write returned; zero: it has not, as far as anybody knows
	err       string    // of its write
	fed       time.Time // when the feed confirmed it; zero: it has not
	confirmed bool
}

// readChanges reads the records of the versions of a row after one, up to another.
func readChanges(ctx context.Context, db *redis.Client, id, after, upTo int64) (all []change, err error) {
	for version := after + 1; version <= upTo; version++ {
		record, err := db.HGetAll(ctx, fmt.Sprintf("change:%d:%d", id, version)).Result()
		if err != nil {
			return nil, err
		}
		all = append(all, change{
			version: version, kind: record["kind"], by: record["by"], at: micros(record["at"]), ended: micros(record["ended"]),
			err: record["error"], fed: micros(record["fed"]), confirmed: record["confirmed"] == "1",
		})
	}
	return all, nil
}

func micros(text string) (t time.Time) {
	if n := number(text); n > 0 {
		t = time.UnixMicro(n)
	}
	return t
}

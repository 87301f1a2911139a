package fleet

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
)

// logPrefix begins each message.
const logPrefix = "levee: "

// logSurvived stores and logs an error of Redis that no caller gets. It ignores outages and
// unconfirmed invalidations, which have been logged already, and errors after the caller has
// left, which say nothing about Redis.
func (s *store) logSurvived(caller context.Context, err error) {
	if err == nil || caller.Err() != nil || errors.Is(err, redisconn.ErrOutage) || errors.Is(err, errUnconfirmed) {
		return
	}
	latest := err // a copy, so that err is not allocated on the heap for every hit
	s.survived.Store(&latest)
	logRedisError(s.log, "redis failed", err)
}

// logRedisError logs a Redis error: at level Error if Redis refuses the client, or the
// client is closed, because that does not end by itself. These two are kinds of events of
// their own, so that other errors do not keep them from the log.
func logRedisError(log *logonce.Log, what string, err error) {
	switch {
	case redisconn.Refused(err):
		log.Error("redis refuses what a cache needs", "error", err)
	case errors.Is(err, redis.ErrClosed):
		log.Error("the redis client is closed: close it after the cache", "error", err)
	default:
		log.Warn(what, "error", err)
	}
}

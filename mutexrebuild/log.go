package mutexrebuild

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/logonce"
)

// prefix begins what is logged.
const prefix = "levee: "

// survived logs an error of Redis that no caller gets to see. That Redis is not
// asked is no news, nor that a caller has left.
func (s *store) survived(caller context.Context, err error) {
	if err != nil && caller.Err() == nil && !errors.Is(err, errShut) && !errors.Is(err, errUnconfirmed) {
		blame(s.journal, "redis failed", err)
	}
}

// blame logs an error of Redis. That it refuses something only an operator can
// mend, and without it there is no cache.
func blame(j *logonce.Log, what string, err error) {
	if redis.IsAuthError(err) || redis.IsPermissionError(err) {
		j.Error("redis refuses what a cache needs", "error", err)
		return
	}
	j.Warn(what, "error", err)
}

package stage

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// SetNX is the lock that everybody writes first: SET key 1 NX, with a TTL or, if that is 0, without one; try again after a moment; DEL at
// the end. It does not know whose lock it deletes.
func SetNX(ctx context.Context, rdb *redis.Client, key string, ttl time.Duration, do func() error) error {
	for {
		err := rdb.SetArgs(ctx, key, 1, redis.SetArgs{Mode: "NX", TTL: ttl}).Err()
		if err == nil {
			break
		}
		if err != redis.Nil { //nolint:errorlint // it is never wrapped
			return err
		}
		if err := Think(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	defer rdb.Del(context.WithoutCancel(ctx), key)
	return do()
}

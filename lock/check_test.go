package lock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A service that starts with a Redis that cannot keep its locks hears why.
func TestCheckSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	good := redistest.Start(t)
	secret := redistest.Start(t, "--requirepass", "secret")
	small := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru")
	noEval := redistest.Start(t)
	if err := noEval.Client(t).Do(t.Context(), "ACL", "SETUSER", "plain", "on", ">x", "~*", "&*", "+@all", "-eval", "-evalsha").Err(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		rdb  redis.UniversalClient
		o    lock.Options
		is   error
		want string
	}{
		{"all is well", good.Client(t), lock.Options{}, nil, ""},
		{"a prefix", good.Client(t), lock.Options{Prefix: "shop"}, nil, ""},
		{"no password", secret.Client(t), lock.Options{}, lock.ErrUnavailable, "NOAUTH"},
		{"no rights", noEval.Client(t, func(o *redis.Options) { o.Username, o.Password = "plain", "x" }), lock.Options{}, lock.ErrUnavailable, "NOPERM"},
		{"no replica", good.Client(t), lock.Options{Replicas: 1}, lock.ErrNotReplicated, ""},
		{"eviction", small.Client(t), lock.Options{}, lock.ErrConfig, "maxmemory-policy volatile-lru"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.o.Hooks.Acquired = func(string, time.Duration, bool) { t.Error("the hooks hear of it") }
			l, err := lock.New(test.rdb, test.o)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			err = l.Check(t.Context())
			if !errors.Is(err, test.is) || test.is != nil && !strings.HasPrefix(err.Error(), "lock: ") {
				t.Errorf("got %v, want %v", err, test.is)
			}
			if err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}

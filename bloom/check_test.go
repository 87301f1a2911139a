package bloom_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
)

func TestCheckSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	good := redistest.Start(t)
	secret := redistest.Start(t, "--requirepass", "secret")
	small := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	for _, test := range []struct {
		name string
		rdb  redis.UniversalClient
		is   error
		want string // "": no error
	}{
		{"all is well", good.Client(t), nil, ""},
		{"no password", secret.Client(t), bloom.ErrUnavailable, "NOAUTH"},
		{"eviction", small.Client(t), nil, "maxmemory-policy allkeys-lru"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, err := bloom.Open(t.Context(), test.rdb, bloom.Options{Name: "f", Capacity: 100, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			err = f.Check(t.Context())
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "bloom: ") || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q in it", err, test.want)
			case errors.Is(err, bloom.ErrUnavailable) != (test.is != nil):
				t.Errorf("got %v", err)
			}
		})
	}
	inProcess, err := bloom.New(bloom.Options{Capacity: 100})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(inProcess.Check(t.Context()), (*bloom.Filter)(nil).Check(t.Context())); err != nil {
		t.Error(err)
	}
}

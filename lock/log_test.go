package lock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// An operator learns what was survived, once and not a thousand times, with the
// name as it can be printed and without what would let somebody give back a lock.
func TestWhatWasSurvivedIsLogged(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	var log redistest.Log
	l := open(t, p.Client(t, quick, func(o *redis.Options) { o.MaxRetries = -1 }), lock.Options{Lease: 3 * time.Second, Logger: log.Logger()})
	redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
	long := "bad\nname" + strings.Repeat("x", 500)
	leases := []*lock.Lease{must(t)(l.Lock(t.Context(), long))}
	for i := range 50 {
		leases = append(leases, must(t)(l.Lock(t.Context(), fmt.Sprint(i))))
	}
	patience, giveUp := context.WithCancel(t.Context())
	var waiter sync.WaitGroup
	waiter.Go(func() { _, _ = l.Lock(patience, "0") })
	redistest.Eventually(t, 30*time.Second, "somebody waits", func() bool { return l.Stats().Waiting == 1 })
	p.Blackhole(true)
	for _, lease := range leases {
		<-lease.Context().Done()
	}
	for _, what := range []string{"a lease was lost", "a renewal failed", "no messages from Redis"} {
		log.Await(t, what)
		if n := log.Count(what); n != 1 {
			t.Errorf("%q was logged %d times", what, n)
		}
	}
	giveUp()
	waiter.Wait()
	p.Heal()
	text := log.String()
	if strings.Contains(text, l.Process()) {
		t.Errorf("an owner's name is in the log: %s", text)
	}
	for line := range strings.Lines(text) {
		if len(line) > 500 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
}

func TestAServerThatIsNoPlaceForLocksIsToldOf(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		o    lock.Options
		want string
	}{
		"it evicts":       {[]string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}, lock.Options{}, "may evict"},
		"it cannot evict": {[]string{"--maxmemory-policy", "allkeys-lru"}, lock.Options{}, ""},
		"it is full":      {[]string{"--maxmemory", "100mb"}, lock.Options{}, ""},
		"no replicas":     {nil, lock.Options{Replicas: 1, ReplicaTimeout: time.Millisecond}, "no replicas"},
	} {
		s := redistest.Start(t, test.args...)
		var log redistest.Log
		test.o.Logger = log.Logger()
		l := open(t, s.Client(t), test.o)
		for range 3 {
			if lease, err := l.Lock(t.Context(), "a"); err == nil {
				unlock(t, lease)
			}
		}
		if test.want != "" {
			log.Await(t, test.want)
		}
		_ = l.Close() // waits for what runs in the background
		time.Sleep(time.Millisecond)
		if n := log.Count("\n"); test.want == "" && n != 0 || test.want != "" && n != 1 {
			t.Errorf("%s: %s", name, log.String())
		}
	}
}

// Who may not ask for the settings hears nothing, and gets his lock as fast.
func TestAnAdviceThatIsForbiddenIsNotMissed(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	if err := s.Client(t).Do(t.Context(), "ACL", "SETUSER", "plain", "on", ">x", "~*", "&*", "+@all", "-info", "-config").Err(); err != nil {
		t.Fatal(err)
	}
	var log redistest.Log
	l := open(t, s.Client(t, func(o *redis.Options) { o.Username, o.Password = "plain", "x" }), lock.Options{Logger: log.Logger()})
	if err := l.Do(t.Context(), "a", func(context.Context, *lock.Lease) error { return nil }); err != nil {
		t.Error(err)
	}
	_ = l.Close()
	if text := log.String(); text != "" {
		t.Errorf("got %s", text)
	}
}

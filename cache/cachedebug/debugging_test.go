package cachedebug_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheadmin"
	"github.com/levee-go/levee/cache/cachedebug"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/mutexrebuild"
)

// These tests play rows of docs/debugging.md: a fault is caused, the look-up says which it is, and what the page
// says to do ends it.

// A pod is a process of a service whose database has rows that a test changes and takes away.
type pod struct {
	*cache.Cache[string, string]
	t     *testing.T
	admin http.Handler
	debug http.Handler
}

// rows are those of the database of all pods.
type rows struct {
	mu   sync.Mutex
	text map[string]string
	down error
}

func (r *rows) set(key, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.text == nil {
		r.text = map[string]string{}
	}
	r.text[key] = text
}

func (r *rows) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = err
}

func (r *rows) load(_ context.Context, key string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text, ok := r.text[key]
	switch {
	case r.down != nil:
		return "", r.down
	case !ok:
		return "", cache.ErrNotFound
	}
	return text, nil
}

func (r *rows) pod(t *testing.T, rdb redis.UniversalClient, change func(*cache.Options)) *pod {
	t.Helper()
	o := cache.Options{Name: "product", RedisTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	c, err := cache.New(rdb, r.load, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	admin, err := cacheadmin.New(cacheadmin.Options{
		Caches: []cacheadmin.Cache{c}, Logger: slog.New(slog.DiscardHandler),
		Allow: func(*http.Request, string, string) (string, error) { return "ann", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return &pod{c, t, admin, cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{c}})}
}

func (p *pod) hearing() *pod {
	p.t.Helper()
	eventually(p.t, "messages arrive", func() bool { return p.Stats().Live })
	return p
}

func (p *pod) gets(key, want string) {
	p.t.Helper()
	if got, err := p.Get(p.t.Context(), key); got != want || err != nil {
		p.t.Errorf("want %q, got %q, %v", want, got, err)
	}
}

func (p *pod) verdict(key string) string {
	p.t.Helper()
	v := look(p.t, p.debug, "key="+key)
	if v.Lookup.Found == nil {
		p.t.Fatalf("%+v", v.Lookup)
	}
	return v.Lookup.Found.Verdict
}

// says checks that the verdict on a key has these words.
func (p *pod) says(key string, words ...string) {
	p.t.Helper()
	verdict := p.verdict(key)
	for _, want := range words {
		if !strings.Contains(verdict, want) {
			p.t.Errorf("the verdict is %q, it lacks %q", verdict, want)
		}
	}
}

// act sends a form to cacheadmin.
func (p *pod) act(form string) (status int) {
	p.t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(form))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	p.admin.ServeHTTP(w, r)
	return w.Code
}

func (p *pod) acts(form string) {
	p.t.Helper()
	if status := p.act(form); status != http.StatusOK {
		p.t.Errorf("%s: %d", form, status)
	}
}

// nervous gives a cache a breaker that two failed loads open for good.
func nervous(o *cache.Options) {
	o.Breaker = redistest.Must(breaker.New(breaker.Options{Name: "db", MinRequests: 2, Cooldown: time.Hour}))
}

// opensItsBreaker reads keys whose loads fail until the breaker is open.
func (p *pod) opensItsBreaker() {
	p.t.Helper()
	eventually(p.t, "the breaker opens", func() bool {
		_, _ = p.Get(p.t.Context(), time.Now().String())
		return p.Stats().Breaker.State == breaker.Open
	})
}

func TestAValueThatNobodyInvalidatedIsFound(t *testing.T) {
	r, s := &rows{}, redistest.Start(t)
	p := r.pod(t, s.Client(t), nil).hearing()
	r.set("42", "old")
	p.gets("42", "old")
	r.set("42", "new") // by a writer that does not know the cache
	p.gets("42", "old")
	p.says("42", "served from this process, read from the source at ")
	if _, page := get(t, p.debug, "key=42"); !strings.Contains(page, `<p class="verdict"><b>served from this process, read from the source at `) {
		t.Errorf("the page has no verdict:\n%s", page)
	}
	other := r.pod(t, s.Client(t), nil).hearing()
	other.says("42", "served from Redis, read from the source at ")
	other.gets("42", "old")
	p.acts("do=invalidate&key=42")
	p.gets("42", "new")
}

func TestAProcessThatHearsNoMessagesIsFound(t *testing.T) {
	r, s := &rows{}, redistest.Start(t)
	if err := s.Client(t).Do(t.Context(), "ACL", "SETUSER", "deaf", "on", "nopass", "~*", "&*", "+@all", "-subscribe").Err(); err != nil {
		t.Fatal(err)
	}
	r.set("42", "old")
	deaf := r.pod(t, s.Client(t, func(o *redis.Options) { o.Username, o.Password = "deaf", "x" }), func(o *cache.Options) {
		o.Local = localcache.Options{TTL: time.Hour, DistrustTTL: time.Hour} // else it ends within a second
	})
	other := r.pod(t, s.Client(t), nil).hearing()
	deaf.gets("42", "old")
	r.set("42", "new")
	eventually(t, "Redis has a value that is newer by a second", func() bool {
		other.acts("do=invalidate&key=42")
		other.gets("42", "new")
		return strings.Contains(deaf.verdict("42"), "Redis has a newer value")
	})
	deaf.gets("42", "old")
	deaf.says("42", "served from this process, though Redis has a newer value: messages of other processes do not arrive")
	deaf.acts("do=invalidate&key=42")
	deaf.gets("42", "new")
}

func TestAnOldValueInPlaceOfAnErrorIsFound(t *testing.T) {
	r := &rows{}
	p := r.pod(t, redistest.Start(t).Client(t), func(o *cache.Options) {
		o.Rebuild = mutexrebuild.Options{ErrorHold: time.Minute}
	}).hearing()
	r.set("42", "old")
	p.gets("42", "old")
	p.acts("do=expire&key=42")
	r.fail(errors.New("the database is on fire"))
	p.gets("42", "old")
	p.says("42", "served stale in place of an error, read from the source at ", ": its load fails: the database is on fire; it ends at ")
	_, _ = p.Get(t.Context(), "43")
	p.says("43", "not cached, readers get an error: its load fails: the database is on fire")
}

func TestAnOpenBreakerIsFound(t *testing.T) {
	r := &rows{}
	p := r.pod(t, redistest.Start(t).Client(t), nervous).hearing()
	r.fail(errors.New("the database is on fire"))
	p.opensItsBreaker()
	if _, err := p.Get(t.Context(), "42"); !errors.Is(err, cache.ErrOverloaded) {
		t.Errorf("got %v", err)
	}
	p.says("42", "not cached, readers get an error: the breaker is open, and nothing is loaded")
}

func TestANullOfARowThatIsThereByNowIsFound(t *testing.T) {
	r := &rows{}
	p := r.pod(t, redistest.Start(t).Client(t), func(o *cache.Options) { o.NullTTL = time.Hour }).hearing()
	_, _ = p.Get(t.Context(), "42")
	r.set("42", "new") // by an INSERT of a writer that does not know the cache
	if _, err := p.Get(t.Context(), "42"); !errors.Is(err, cache.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	p.says("42", "absent: the source did not have it", "if the row exists now, invalidate the key")
	p.acts("do=invalidate&key=42")
	p.gets("42", "new")
}

func TestAWriterThatTakesLongIsFound(t *testing.T) {
	r := &rows{}
	p := r.pod(t, redistest.Start(t).Client(t), nil).hearing()
	r.set("42", "old")
	err := p.Write(t.Context(), []string{"42"}, func(context.Context) error {
		p.says("42", "not cached: a writer, or the lag of replicas, holds it until ")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	p.says("42", "not cached: the next reader loads it")
}

func TestAnInvalidationThatIsNotConfirmedIsFound(t *testing.T) {
	r, s := &rows{}, redistest.Start(t)
	p := r.pod(t, s.Client(t), func(o *cache.Options) { o.RedisTimeout = time.Second }).hearing()
	r.set("42", "old")
	p.gets("42", "old")
	s.Kill()
	r.set("42", "new")
	if status := p.act("do=invalidate&key=42"); status != http.StatusServiceUnavailable {
		t.Errorf("%d", status)
	}
	p.says("42", "not read from Redis: an invalidation of this process is not confirmed yet")
	p.gets("42", "new")
	s.Restart()
	eventually(t, "it is confirmed by itself", func() bool { return !strings.Contains(p.verdict("42"), "not confirmed") })
}

func TestAnOutageOfRedisIsFound(t *testing.T) {
	r, s := &rows{}, redistest.Start(t)
	p := r.pod(t, s.Client(t), func(o *cache.Options) { o.RedisTimeout = time.Second }).hearing()
	r.set("42", "new")
	s.Kill()
	eventually(t, "levee no longer calls Redis", func() bool {
		p.gets("42", "new")
		return p.Stats().Rebuild.Outage
	})
	p.says("43", "not read from Redis: levee does not call it during an outage; each process loads it for itself")
}

func TestAValueWhoseRefreshIsRefusedIsFound(t *testing.T) {
	r, s := &rows{}, redistest.Start(t)
	soonStale := func(o *cache.Options) {
		o.TTL, o.StaleWhileRevalidate, o.Local.MaxBytes = 100*time.Millisecond, time.Hour, -1
	}
	refused := r.pod(t, s.Client(t), func(o *cache.Options) { soonStale(o); nervous(o) })
	r.set("42", "old")
	refused.gets("42", "old")
	r.fail(errors.New("the database is on fire"))
	refused.opensItsBreaker()
	eventually(t, "the value is past its TTL", func() bool {
		refused.gets("42", "old")
		return strings.HasPrefix(refused.verdict("42"), "served stale from Redis, read from the source at ")
	})
	refused.says("42", "the breaker is open, and nothing is loaded; it ends at ")

	r.fail(nil)
	r.set("42", "new")
	well := r.pod(t, s.Client(t), soonStale)
	eventually(t, "a process whose loads are not refused refreshes it", func() bool {
		_, _ = well.Get(t.Context(), "42")
		return strings.HasPrefix(refused.verdict("42"), "served from Redis, ")
	})
	refused.gets("42", "new")
}

func TestALoaderThatFindsNoRowIsFound(t *testing.T) {
	r := &rows{} // of another database
	p := r.pod(t, redistest.Start(t).Client(t), nil).hearing()
	for range 3 {
		p.acts("do=invalidate&key=42")
		p.says("42", "not cached: the next reader loads it")
		if _, err := p.Get(t.Context(), "42"); !errors.Is(err, cache.ErrNotFound) {
			t.Errorf("got %v", err)
		}
		p.says("42", "absent: the source did not have it")
	}
}

// INFO commandstats tells misses, hits, invalidations and other programs apart.
func TestTheCommandsOfRedisSayWhoKeepsItBusy(t *testing.T) {
	r, s := &rows{}, redistest.Start(t)
	var keys []string
	for i := range 100 {
		keys = append(keys, fmt.Sprint(i))
		r.set(keys[i], "old")
	}
	during := func(work func()) (calls map[string]int64) {
		calls = map[string]int64{"getrange": 0, "evalsha": 0, "publish": 0, "keys": 0}
		for name := range calls {
			calls[name] = -s.Calls(name)
		}
		work()
		for name := range calls {
			calls[name] += s.Calls(name)
		}
		return calls
	}
	each := func(p *pod, times int) {
		for range times {
			for _, key := range keys {
				p.gets(key, "old")
			}
		}
	}
	off := r.pod(t, s.Client(t), func(o *cache.Options) { o.Local.MaxBytes = -1 })
	on := r.pod(t, s.Client(t), nil).hearing()
	if n := during(func() { each(on, 1) }); n["evalsha"] < n["getrange"]/2 || n["publish"] > n["evalsha"]/2 {
		t.Errorf("misses: %v", n)
	}
	if n := during(func() { each(off, 5) }); n["getrange"] < 10*n["evalsha"] {
		t.Errorf("hits: %v", n)
	}
	if n := during(func() { each(on, 5) }); n["getrange"] > 20 { // of its heartbeats
		t.Errorf("hits with a local tier: %v", n)
	}
	if n := during(func() {
		for _, key := range keys {
			if err := on.Invalidate(t.Context(), key); err != nil {
				t.Error(err)
			}
		}
	}); n["publish"] < n["evalsha"]*9/10 {
		t.Errorf("invalidations: %v", n)
	}

	report := s.Client(t, func(o *redis.Options) { o.ClientName = "report" })
	if n := during(func() {
		for range 100 {
			if err := report.Keys(t.Context(), "product:*").Err(); err != nil {
				t.Error(err)
			}
		}
	}); n["keys"] < n["getrange"] || n["keys"] < n["evalsha"] {
		t.Errorf("a report: %v", n)
	}
	var who string
	for client := range strings.Lines(s.Client(t).ClientList(t.Context()).Val()) {
		if strings.Contains(client, " cmd=keys ") {
			who += client
		}
	}
	if !strings.Contains(who, " name=report ") || strings.Count(who, "\n") != 1 {
		t.Errorf("CLIENT LIST shows as the clients whose last command was KEYS:\n%s", who)
	}
}

func TestARedisThatIsTooSmallIsFound(t *testing.T) {
	r, s := &rows{}, redistest.Start(t, "--maxmemory", "6mb", "--maxmemory-policy", "volatile-lru")
	p := r.pod(t, s.Client(t), func(o *cache.Options) { o.Local.MaxBytes = -1 })
	text := strings.Repeat("x", 20_000)
	readAll := func() (loads uint64, evicted int64) {
		loads, evicted = p.Stats().Loads, s.Stat("evicted_keys")
		for i := range 500 { // 10 MB
			r.set(fmt.Sprint(i), text)
			p.gets(fmt.Sprint(i), text)
		}
		return p.Stats().Loads - loads, s.Stat("evicted_keys") - evicted
	}
	readAll()
	if loads, evicted := readAll(); loads < 100 || evicted < 100 {
		t.Errorf("too small: %d loads, %d keys evicted", loads, evicted)
	}
	if err := s.Client(t).ConfigSet(t.Context(), "maxmemory", "50mb").Err(); err != nil {
		t.Fatal(err)
	}
	readAll()
	if loads, evicted := readAll(); loads != 0 || evicted != 0 {
		t.Errorf("with more memory: %d loads, %d keys evicted", loads, evicted)
	}
}

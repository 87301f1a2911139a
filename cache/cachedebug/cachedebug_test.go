package cachedebug_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/cache/cachedebug"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

func TestMain(m *testing.M) { redistest.Main(m, nil) }

// A shelf is a cache of strings whose source has a value for each key that does not begin
// with "no".
type shelf struct {
	*cache.Cache[string, string]
	mu    sync.Mutex
	loads int
	gate  chan struct{} // loads wait for it, if it is not nil
}

const secret = "the-value-nobody-may-see"

func openShelf(t *testing.T, s *redistest.Server, change func(*cache.Options)) *shelf {
	t.Helper()
	b := &shelf{}
	o := cache.Options{Name: "shelf", RedisTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler), Local: localcache.Options{HotKeys: 100}}
	if change != nil {
		change(&o)
	}
	c, err := cache.New(s.Client(t), func(ctx context.Context, key string) (string, error) {
		b.mu.Lock()
		b.loads++
		gate := b.gate
		b.mu.Unlock()
		if gate != nil {
			select {
			case <-gate:
			case <-ctx.Done():
			}
		}
		if strings.HasPrefix(key, "no") {
			return "", cache.ErrNotFound
		}
		return secret, nil
	}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	b.Cache = c
	return b
}

func get(t *testing.T, h http.Handler, query string) (*http.Response, string) {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	response, err := http.Get(server.URL + "/debug/levee?" + query)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// A view is what a test looks at of the JSON.
type view struct {
	Caches []struct {
		Name   string
		Health []struct{ What, Is string }
		Shares []struct {
			Outcome string
			Gets    uint64
			Share   float64
		}
		TopKeys []cachedebug.HotKey
		Looks   []struct {
			After       string
			Looked, Old uint64
		}
		Stats struct{ Gets, Loads, Local uint64 }
	}
	Filters []struct {
		Name  string
		Stats bloom.Stats
	}
	Lookup struct {
		Error string
		Found *struct {
			Verdict, ID, Filter, RedisKey, HeldError, LeaseLeft string
			Local, Redis                                        *struct {
				State, Age, TTL, Left, Value string
				Null                         bool
				Bytes                        int
			}
			LocalUnknown, Loading, Leased, Awaited bool
			Foreign, Outage, Unconfirmed           bool
			Holds                                  []string
		}
	}
	Log []string
}

func look(t *testing.T, h http.Handler, query string) (v view) {
	t.Helper()
	_, body := get(t, h, "format=json&"+query)
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return v
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	redistest.Eventually(t, 20*time.Second, what, cond)
}

func TestThePageSaysWhatTheCachesHaveDone(t *testing.T) {
	filter, err := bloom.New(bloom.Options{Capacity: 1000, Complete: true})
	if err != nil {
		t.Fatal(err)
	}
	defer filter.Close()
	_ = filter.Add(t.Context(), "a", "no")
	b := openShelf(t, redistest.Start(t), func(o *cache.Options) { o.Filter = filter })
	h := cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{b}, Filters: map[string]*bloom.Filter{"ids": filter}})
	eventually(t, "messages arrive", func() bool { return b.Stats().Live })
	for range 10_000 {
		_, _ = b.Get(t.Context(), "a")
	}
	_, _ = b.Get(t.Context(), "no")
	_, _ = b.Get(t.Context(), "surely not there")

	v := look(t, h, "")
	if len(v.Caches) != 1 || len(v.Filters) != 1 || v.Filters[0].Stats.Adds != 2 {
		t.Fatalf("got %+v", v)
	}
	c := v.Caches[0]
	sum := 0.0
	for _, s := range c.Shares {
		sum += s.Share
		if s.Outcome == "local" && s.Gets < 9000 || s.Outcome == "filter" && s.Gets != 1 {
			t.Errorf("%+v", s)
		}
	}
	if c.Name != "shelf" || c.Stats.Gets != 10_002 || c.Stats.Loads != 2 || sum < 0.999 || sum > 1.001 {
		t.Errorf("got %+v", c)
	}
	if len(c.TopKeys) == 0 || c.TopKeys[0].ID != "a" || c.TopKeys[0].Share < 0.9 {
		t.Errorf("the hottest keys are %+v", c.TopKeys)
	}
	_, page := get(t, h, "")
	for _, want := range []string{"10002 Gets, 2 loads", "Redis: <b>answers</b>", "messages: <b>arrive</b>", "breaker: <b>closed</b>", "Rebuild.Waits", "filter &#34;ids&#34;"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

// A Ledger's figures have a table of their own, once it has any.
func TestThePageShowsWhatALedgerHasFound(t *testing.T) {
	b := openShelf(t, redistest.Start(t), nil)
	h := cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{b}})
	if _, page := get(t, h, ""); strings.Contains(page, "Old values") {
		t.Error("a cache without a Ledger has a table for it")
	}
	load := func(context.Context, string) (string, error) { return "another", nil }
	ledger, err := audit.NewLedger(b.Cache, load, audit.LedgerOptions[string, string]{Share: 1, Old: func(audit.StaleValue[string, string]) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	if err := b.Set(t.Context(), "a", secret); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is found", func() bool { return b.Stats().Ledger.Old1s == 1 })
	if _, page := get(t, h, ""); !strings.Contains(page, `</td><td class="bad">1</td></tr>`) || !strings.Contains(page, `<tr><th>60 s</th><td>0</td><td>0</td></tr>`) {
		t.Errorf("the page lacks it:\n%s", page)
	}
	if looks := look(t, h, "").Caches[0].Looks; len(looks) != 4 || looks[0].Old != 1 {
		t.Errorf("got %+v", looks)
	}
}

func TestALookUpSaysWhereAKeyStands(t *testing.T) {
	s := redistest.Start(t)
	b := openShelf(t, s, nil)
	h := cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{b}})
	ctx, rdb := t.Context(), s.Client(t)
	found := func(key string) view {
		t.Helper()
		v := look(t, h, "key="+url.QueryEscape(key)) // the only cache needs no name
		if v.Lookup.Found == nil {
			t.Fatalf("%q: %+v", key, v.Lookup)
		}
		return v
	}
	eventually(t, "messages arrive", func() bool { return b.Stats().Live })

	shelf := keys.OfCache("shelf")
	if f := found("a").Lookup.Found; f.Local != nil || f.Redis != nil || f.Leased || f.RedisKey != shelf.Value(0, "a") {
		t.Errorf("before anything: %+v", f)
	}
	_, _ = b.Get(ctx, "a")
	if f := found("a").Lookup.Found; f.Local == nil || f.Local.State != "fresh" || f.Redis == nil || f.Redis.State != "fresh" ||
		f.Redis.Bytes <= len(secret) || f.Local.Bytes <= len(secret) || f.Redis.Null || f.Leased || len(f.Holds) > 0 ||
		!strings.HasPrefix(f.Verdict, "served from this process") {
		t.Errorf("after a load: %+v, %+v, %+v", f, f.Local, f.Redis)
	}
	_ = b.Invalidate(ctx, "a")
	if f := found("a").Lookup.Found; f.Redis != nil || f.Local != nil && f.Local.State != "dead" {
		t.Errorf("after an invalidation: %+v, %+v", f, f.Local)
	}
	_, _ = b.Get(ctx, "no")
	if f := found("no").Lookup.Found; f.Local == nil || !f.Local.Null || f.Local.State != "fresh" {
		t.Errorf("of an absent key: %+v", f)
	}

	rdb.LPush(ctx, shelf.Value(0, "list"), "x")
	if f := found("list").Lookup.Found; !f.Foreign {
		t.Errorf("of a foreign key: %+v", f)
	}
	rdb.Set(ctx, shelf.Value(0, "bytes"), "x", time.Minute)
	if f := found("bytes").Lookup.Found; f.Redis == nil || f.Redis.State != "dead" || f.Redis.Bytes != 1 {
		t.Errorf("of foreign bytes: %+v", f)
	}

	err := b.Write(ctx, []string{"w"}, func(context.Context) error {
		if f := found("w").Lookup.Found; len(f.Holds) != 1 {
			t.Errorf("beside a writer: %+v", f)
		}
		return nil
	})
	if f := found("w").Lookup.Found; err != nil || len(f.Holds) > 0 {
		t.Errorf("after the write: %v, %+v", err, f)
	}

	// One process loads, another waits for it.
	other := openShelf(t, s, nil)
	b.mu.Lock()
	b.gate = make(chan struct{})
	b.mu.Unlock()
	var readers sync.WaitGroup
	readers.Go(func() { _, _ = b.Get(ctx, "slow") })
	eventually(t, "somebody has the lease", func() bool { f := found("slow").Lookup.Found; return f.Leased && f.LeaseLeft != "" && f.Loading })
	readers.Go(func() { _, _ = other.Get(ctx, "slow") })
	eventually(t, "another process waits", func() bool { return found("slow").Lookup.Found.Awaited })
	close(b.gate)
	readers.Wait()
	if f := found("slow").Lookup.Found; f.Leased || f.Loading || f.Redis == nil {
		t.Errorf("after the load: %+v", f)
	}
}

// A value that the process has only kept was "fresh", and "there for 0s".
func TestAValueThatIsOnlyKeptIsCalledSo(t *testing.T) {
	b := openShelf(t, redistest.Start(t), func(o *cache.Options) { o.Local.TTL = 100 * time.Millisecond })
	h := cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{b}})
	eventually(t, "messages arrive", func() bool { return b.Stats().Live })
	_, _ = b.Get(t.Context(), "a")
	eventually(t, "the value is kept", func() bool {
		local := look(t, h, "key=a").Lookup.Found.Local
		if local == nil || local.State == "fresh" && local.Left == "0s" {
			t.Fatalf("%+v", local)
		}
		return local.State == "kept" && local.Left == "–"
	})
}

func TestALookUpWithoutRedisSaysWhatTheProcessKnows(t *testing.T) {
	s := redistest.Start(t)
	b := openShelf(t, s, func(o *cache.Options) { o.RedisTimeout = time.Second })
	h := cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{b}})
	eventually(t, "messages arrive", func() bool { return b.Stats().Live })
	_, _ = b.Get(t.Context(), "a")
	s.Kill()
	_ = b.Invalidate(t.Context(), "b")
	eventually(t, "the outage is noticed", func() bool {
		_, _ = b.Get(t.Context(), fmt.Sprint(time.Now()))
		return b.Stats().Rebuild.Outage
	})
	l := look(t, h, "key=a&cache=shelf").Lookup
	if !strings.Contains(l.Error, "redis unavailable") || l.Found == nil || !l.Found.Outage || l.Found.Unconfirmed || l.Found.Local == nil {
		t.Errorf("got %+v, %+v", l, l.Found)
	}
	if l := look(t, h, "key=b&cache=shelf").Lookup; l.Found == nil || !l.Found.Unconfirmed {
		t.Errorf("of an invalidation that is not confirmed: %+v", l)
	}
	if _, page := get(t, h, ""); !strings.Contains(page, "Redis: <b>outage</b>") || !strings.Contains(page, "invalidations: <b>1 not confirmed</b>") {
		t.Errorf("the page says nothing of it:\n%s", page)
	}
}

// A cache without Redis has none that answers, and no messages that could arrive.
func TestACacheWithoutRedisSaysSo(t *testing.T) {
	c, err := cache.New(nil, func(context.Context, string) (string, error) { return secret, nil }, cache.Options{Name: "alone"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, page := get(t, cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{c}}), "")
	if !strings.Contains(page, "Redis: <b>none: this process alone</b>") || !strings.Contains(page, "breaker: <b>closed</b>") {
		t.Errorf("the page does not say that there is no Redis:\n%s", page)
	}
	for _, untrue := range []string{"Redis: <b>answers", "messages:", "invalidations:"} {
		if strings.Contains(page, untrue) {
			t.Errorf("the page of a cache without Redis says %q", untrue)
		}
	}
}

func TestAValueIsShownOnlyIfAskedFor(t *testing.T) {
	b := openShelf(t, redistest.Start(t), nil)
	_, _ = b.Get(t.Context(), "a")
	for _, values := range []bool{false, true} {
		h := cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{b}, Values: values})
		for _, query := range []string{"key=a", "key=a&format=json", "key=a&values=1&Values=true"} {
			if _, body := get(t, h, query); strings.Contains(body, secret) != values {
				t.Errorf("with Values %v, %s: %s", values, query, body)
			}
		}
	}
}

// The page changes nothing: no other method, no count, no key in Redis, no load.
func TestThePageIsReadOnly(t *testing.T) {
	s := redistest.Start(t)
	b := openShelf(t, s, nil)
	h := cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{b}})
	_, _ = b.Get(t.Context(), "a")
	eventually(t, "messages arrive", func() bool { return b.Stats().Live })
	rdb := s.Client(t)
	before, keys := b.Stats(), rdb.Keys(t.Context(), "*").Val()
	for _, key := range []string{"a", "b", "no"} {
		_ = look(t, h, "key="+key)
	}
	if after := b.Stats(); !reflect.DeepEqual(before, after) {
		t.Errorf("a look-up changed the counters:\n%+v\n%+v", before, after)
	}
	if after := rdb.Keys(t.Context(), "*").Val(); len(after) != len(keys) || b.loads != 1 {
		t.Errorf("before %q, after %q, %d loads", keys, after, b.loads)
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/debug/levee?cache=shelf&key=a", nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
}

// inQuotes finds the values of attributes and keeps their first byte.
var inQuotes = regexp.MustCompile(`"([^"]?)[^"]*"`)

var tags = regexp.MustCompile(`</?([a-zA-Z!][^\s>/]*)([^>]*)>`)

// Keys, names, errors and log lines may hold anything. None of it may become a tag, an
// attribute, or another address than the page's own.
func TestHostileKeysAreEscaped(t *testing.T) {
	hostile := []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `javascript:alert(1)`, `</style><script>alert(1)</script>`,
		`</option><svg/onload=alert(1)>`, "a\u202egpj.exe", "line\nbreak\x00", "\xff\xfe", `{{.}}`, `?cache=x&key=y#z`, strings.Repeat("<b>", 150),
	}
	log := cachedebug.NewLog(nil, 50)
	b := openShelf(t, redistest.Start(t), func(o *cache.Options) {
		o.Name, o.Logger = `<script>"name"`, slog.New(log)
	})
	h := cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{b}, Log: log, Values: true})
	for _, key := range hostile {
		for range 1000 { // so that each is among the hottest
			_, _ = b.Get(t.Context(), key)
		}
		_ = b.Set(t.Context(), key, key)
		slog.New(log).Error(key, key, key, "error", errors.New(key))
	}
	if v := look(t, h, ""); len(v.Caches[0].TopKeys) != len(hostile) || len(v.Log) < len(hostile) {
		t.Fatalf("%d hottest keys, %d lines", len(v.Caches[0].TopKeys), len(v.Log))
	}
	known := map[string]bool{}
	for name := range strings.FieldsSeq("!DOCTYPE html head meta title style body header h1 h2 h3 span p a main form label input select option button section ul li ol b svg rect table thead tbody tr th td code details summary div") {
		known[name] = true
	}
	for _, key := range hostile {
		response, page := get(t, h, url.Values{"cache": {`<script>"name"`}, "key": {key}, "refresh": {key}}.Encode())
		if response.Header.Get("Refresh") != "" || !strings.Contains(response.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%q: the header is %v", key, response.Header)
		}
		for _, tag := range tags.FindAllStringSubmatch(page, -1) {
			if !known[tag[1]] || regexp.MustCompile(`(?i)\son[a-z]+=|src=|href="[^?]`).MatchString(inQuotes.ReplaceAllString(tag[2], `"$1"`)) {
				t.Errorf("%q: the page has the tag %q", key, tag[0])
			}
		}
		if strings.Contains(strings.ToLower(page), "<script") || regexp.MustCompile(`[\x00\x{202e}]`).MatchString(strings.ReplaceAll(page, `value="`+"a\u202egpj.exe"+`"`, "")) {
			t.Errorf("%q stands in the page as it is", key)
		}
		if _, body := get(t, h, url.Values{"cache": {`<script>"name"`}, "key": {key}, "format": {"json"}}.Encode()); strings.Contains(body, "<") {
			t.Errorf("%q: the JSON could be taken for a page: %s", key, body)
		}
	}
}

// A browser refuses a style whose hash is another.
func TestThePolicyLetsThePageHaveItsStyle(t *testing.T) {
	response, page := get(t, cachedebug.New(cachedebug.Options{}), "")
	_, rest, _ := strings.Cut(page, "<style>")
	style, _, _ := strings.Cut(rest, "</style>")
	sum := sha256.Sum256([]byte(style))
	if policy := response.Header.Get("Content-Security-Policy"); len(style) < 100 || !strings.Contains(policy, "style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'") {
		t.Errorf("the policy is %q, the style %d bytes", policy, len(style))
	}
	if response, _ := get(t, cachedebug.New(cachedebug.Options{}), "refresh=2"); response.Header.Get("Refresh") != "2" {
		t.Errorf("the header is %v", response.Header)
	}
}

func TestALookUpOfNothing(t *testing.T) {
	b := openShelf(t, redistest.Start(t), nil)
	h := cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{b}})
	if l := look(t, h, "cache=other&key=a").Lookup; !strings.Contains(l.Error, "no cache") || l.Found != nil {
		t.Errorf("of a cache that is not there: %+v", l)
	}
	if l := look(t, h, "key="+strings.Repeat("x", 1000)).Lookup; !strings.Contains(l.Error, "invalid key") || l.Found != nil {
		t.Errorf("of a key that is too long: %+v", l)
	}
	if v := look(t, cachedebug.New(cachedebug.Options{}), "key=a"); v.Lookup.Error == "" {
		t.Errorf("without caches: %+v", v)
	}
}

func TestTheLogKeepsItsLastLines(t *testing.T) {
	var passed redistest.Log
	log := cachedebug.NewLog(passed.Logger().Handler(), 3)
	l := slog.New(log).With("cache", "a").WithGroup("g")
	for i := range 5 {
		l.Warn("event", "i", i)
	}
	l.Warn(strings.Repeat("x", 5000))
	lines := log.Lines()
	if len(lines) != 3 || len(lines[0]) != 1<<10 || !strings.Contains(lines[1], "msg=event cache=a g.i=4") || !strings.Contains(lines[2], "g.i=3") {
		t.Errorf("kept %.200q", lines)
	}
	if passed.Count("msg=event") != 5 {
		t.Errorf("passed on: %s", &passed)
	}
	alone := cachedebug.NewLog(nil, 3)
	slog.New(alone).Debug("quiet")
	slog.New(alone).Info("said")
	if lines := alone.Lines(); len(lines) != 1 || !strings.Contains(lines[0], "said") {
		t.Errorf("kept %q", lines)
	}
}

func TestPagesBesideOneAnother(t *testing.T) {
	log := cachedebug.NewLog(nil, 10)
	b := openShelf(t, redistest.Start(t), func(o *cache.Options) { o.Logger = slog.New(log) })
	h := cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{b}, Log: log})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 20 {
				_, _ = b.Get(t.Context(), fmt.Sprint(n))
				slog.New(log).Warn("line", "n", n)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, fmt.Sprintf("/?key=%d", i), nil))
				if w.Code != http.StatusOK {
					t.Errorf("%d: %s", w.Code, w.Body)
				}
			}
		})
	}
	all.Wait()
}

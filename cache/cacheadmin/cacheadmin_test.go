package cacheadmin_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheadmin"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m, nil) }

// A source gives each key the number of its edition.
type source struct {
	edition, loads atomic.Int64
	gate           chan struct{} // loads that have read wait for it, if there is one
	waiting        atomic.Bool
}

// open makes a cache as another process has it.
func (s *source) open(t *testing.T, rdb redis.UniversalClient, changes ...func(*cache.Options)) *cache.Cache[int64, string] {
	t.Helper()
	load := func(_ context.Context, id int64) (string, error) {
		s.loads.Add(1)
		v := fmt.Sprintf("%d of edition %d", id, s.edition.Load())
		if id == 404 {
			return "", errors.New("the database is on fire")
		}
		if s.gate != nil {
			s.waiting.Store(true)
			<-s.gate
		}
		return v, nil
	}
	o := cache.Options{Name: "product", RedisTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	for _, change := range changes {
		change(&o)
	}
	c, err := cache.NewFrom(rdb, cache.Source[int64, string]{
		Load: load, Tags: func(int64, string) []string { return []string{"tenant:7"} },
	}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	redistest.Eventually(t, 20*time.Second, "messages arrive", func() bool { return rdb == nil || c.Stats().Live })
	return c
}

func gives(t *testing.T, c *cache.Cache[int64, string], id int64, want string) {
	t.Helper()
	if got, err := c.Get(t.Context(), id); err != nil || got != want {
		t.Errorf("want %q, got %q, %v", want, got, err)
	}
}

// anybody is allowed, and has no name but the one they send.
func anybody(r *http.Request, _, _ string) (string, error) {
	if who := r.Header.Get("Who"); who != "" {
		return who, nil
	}
	return "ann", nil
}

func admin(t *testing.T, change func(*cacheadmin.Options), caches ...cacheadmin.Cache) *cacheadmin.Handler {
	t.Helper()
	o := cacheadmin.Options{Caches: caches, Allow: anybody, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	h, err := cacheadmin.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// An answer is what a test looks at of the JSON.
type answer struct {
	status         int
	Cache, Do, Who string
	Keys, Caches   []string
	Found          []struct {
		ID           string
		Verdict      string
		Local, Redis *struct{ State, Value string }
	}
	Rebuild *struct {
		State, Who, Error string
		Keys              uint64
	}
	Error string
}

// post sends a form, such as "do=invalidate&key=42", with headers.
func post(t *testing.T, h http.Handler, form string, headers ...string) answer {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "http://caches.example/admin/levee", strings.NewReader(form))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return send(t, h, r)
}

func send(t *testing.T, h http.Handler, r *http.Request) (a answer) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatalf("%v in %s", err, w.Body)
	}
	a.status = w.Code
	return a
}

func TestNewNeedsToKnowWhoMay(t *testing.T) {
	c := (&source{}).open(t, nil)
	for want, o := range map[string]cacheadmin.Options{
		"Allow is nil":        {Caches: []cacheadmin.Cache{c}},
		"Caches is empty":     {Allow: anybody},
		`two of the name "pr`: {Caches: []cacheadmin.Cache{c, c}, Allow: anybody},
	} {
		if _, err := cacheadmin.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

// Each line that the package shows is run as it stands there.
func TestTheCurlLinesOfThePackageDoWhatTheySay(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip(err)
	}
	s := &source{}
	exists, err := bloom.New(bloom.Options{Capacity: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer exists.Close()
	c := s.open(t, redistest.Start(t).Client(t), func(o *cache.Options) { o.Filter = exists })
	all := func(context.Context) iter.Seq2[int64, error] {
		return func(yield func(int64, error) bool) { _ = yield(42, nil) && yield(43, nil) }
	}
	server := httptest.NewServer(admin(t, func(o *cacheadmin.Options) {
		o.Allow = cacheadmin.AllowToken("of-ann")
	}, cacheadmin.WithScan(c, all)))
	defer server.Close()
	doc, err := os.ReadFile("cacheadmin.go")
	if err != nil {
		t.Fatal(err)
	}
	var done []string
	for _, line := range regexp.MustCompile(`(?m)^//\t(curl .*)$`).FindAllStringSubmatch(string(doc), -1) {
		for _, id := range []int64{42, 43} {
			_, _ = c.Get(t.Context(), id)
		}
		edition := s.edition.Add(1)
		cmd := exec.Command("sh", "-c", strings.ReplaceAll(line[1], "http://localhost:6060", server.URL))
		cmd.Env = append(os.Environ(), "ADMIN_TOKEN=of-ann")
		out, err := cmd.Output()
		var a answer
		if err := errors.Join(err, json.Unmarshal(out, &a)); err != nil {
			t.Fatalf("%s: %v, %s", line[1], err, out)
		}
		if a.Error != "" || a.Cache != "product" || a.Who != "the bearer of the token" {
			t.Errorf("%s: %+v", line[1], a)
		}
		done = append(done, a.Do)
		if a.Do == "inspect" {
			if len(a.Found) != 1 || a.Found[0].ID != "42" || a.Found[0].Redis.State != "fresh" {
				t.Errorf("%s: %+v", line[1], a)
			}
		}
		changes := a.Do != "inspect" && a.Do != "filter" && a.Do != "rebuildfilter"
		if !changes {
			edition = s.edition.Add(-1)
		}
		loads := s.loads.Load()
		gives(t, c, 42, fmt.Sprintf("42 of edition %d", edition))
		if loaded := s.loads.Load() > loads; loaded != (changes && a.Do != "refresh") {
			t.Errorf("after %s a Get loads: %v", a.Do, loaded)
		}
	}
	if got := strings.Join(done, " "); got != "inspect invalidate expire refresh clear cleartags announce rebuildfilter filter" {
		t.Errorf("the lines do %s", got)
	}
}

// This is why there is no DEL: it leaves what other processes hold in their memory, and a
// load that is under way puts the old value back.
func TestAnInvalidationReachesWhatADELDoesNot(t *testing.T) {
	server := redistest.Start(t)
	s := &source{}
	here, there := s.open(t, server.Client(t)), s.open(t, server.Client(t))
	h, rdb := admin(t, nil, here), server.Client(t)
	del := func(id string) {
		if err := rdb.Del(t.Context(), keys.OfCache("product").Value(0, id)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	gives(t, there, 1, "1 of edition 0")
	s.edition.Add(1)
	del("1")
	gives(t, there, 1, "1 of edition 0")
	if a := post(t, h, "do=invalidate&key=1"); a.status != http.StatusOK || a.Error != "" {
		t.Fatalf("%+v", a)
	}
	redistest.Eventually(t, 20*time.Second, "the other process hears of it", func() bool {
		v, err := there.Get(t.Context(), 1)
		return err == nil && v == "1 of edition 1"
	})

	for id, end := range map[int64]func(){
		2: func() { del("2") },
		3: func() {
			if a := post(t, h, "do=invalidate&key=3"); a.status != http.StatusOK {
				t.Errorf("%+v", a)
			}
		},
	} {
		s.edition.Store(1)
		s.gate = make(chan struct{})
		s.waiting.Store(false)
		loaded := make(chan struct{})
		go func() {
			defer close(loaded)
			_, _ = there.Get(context.Background(), id)
		}()
		redistest.Eventually(t, 20*time.Second, "a load has read", s.waiting.Load)
		s.edition.Store(2)
		end()
		close(s.gate)
		<-loaded
		gives(t, here, id, fmt.Sprintf("%d of edition %d", id, id-1)) // after the DEL the old one is back
	}
}

func TestEachCallIsLoggedWithWhoAsked(t *testing.T) {
	var log redistest.Log
	c := (&source{}).open(t, nil)
	h := admin(t, func(o *cacheadmin.Options) {
		o.Logger = log.Logger()
		o.Allow = func(r *http.Request, cache, verb string) (string, error) {
			if verb == "clear" {
				return "bob", fmt.Errorf("bob may not %s %.7s", verb, cache)
			}
			return anybody(r, cache, verb)
		}
	}, c)
	for form, want := range map[string]string{
		"do=inspect&key=1":          `level=INFO msg="a call of cacheadmin" who=bob from=192.0.2.1:1234 cache=product do=inspect keys=[1]`,
		"do=invalidate&key=1&key=2": `level=INFO msg="a call of cacheadmin" who=bob from=192.0.2.1:1234 cache=product do=invalidate keys="[1 2]"`,
		"do=refresh&key=404":        `level=WARN msg="a call of cacheadmin failed" who=bob from=192.0.2.1:1234 cache=product do=refresh keys=[404]`,
		"do=clear":                  `level=WARN msg="a call of cacheadmin was refused" who=bob from=192.0.2.1:1234 cache=product do=clear keys=[] tags=[] error="bob may not clear product"`,
		"do=invalidate":             `level=WARN msg="a call of cacheadmin was refused" who=bob from=192.0.2.1:1234 cache=product do=invalidate keys=[]`,
		"do=clear&key=" + strings.Repeat("x", 1<<19):           `do=clear keys="1 of them, [` + strings.Repeat("x", 99) + `…" tags=[] error`,
		"do=clear&cache=" + strings.Repeat("y", 1<<19):         `cache=` + strings.Repeat("y", 200) + ` do=clear`,
		"do=inspect&key=1&cache=" + strings.Repeat("z", 1<<19): `error="there is no cache \"` + strings.Repeat("z", 100) + `\""`,
	} {
		post(t, h, form, "Who", "bob")
		if n := log.Count(want); n != 1 {
			t.Errorf("%.60s: want once %s in\n%.9000s", form, want, &log)
		}
	}
	if log.Count("event=admin_call\n") != 2 || log.Count("event=admin_call_failed\n") != 1 {
		t.Errorf("lines without their events:\n%.2000s", &log)
	}
	for line := range strings.Lines(log.String()) {
		if len(line) > 4<<10 {
			t.Errorf("a line of %d bytes: %.200s", len(line), line)
		}
	}
}

func TestATokenAllowsItsBearerAlone(t *testing.T) {
	for _, c := range []struct {
		token, header string
		allowed       bool
	}{
		{"s3cret", "Bearer s3cret", true},
		{"s3cret", "Bearer s3cre", false},
		{"s3cret", "s3cret", false},
		{"s3cret", "", false},
		{"", "Bearer ", false},
		{"", "", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", c.header)
		if who, err := cacheadmin.AllowToken(c.token)(r, "product", "inspect"); (err == nil) != c.allowed || (who != "") != c.allowed {
			t.Errorf("token %q, header %q: %q, %v", c.token, c.header, who, err)
		}
	}
}

func TestWhoIsNotAllowedDoesAndSeesNothing(t *testing.T) {
	c := (&source{}).open(t, nil)
	gives(t, c, 1, "1 of edition 0")
	var asked []string
	refuse := func(who string, err error) func(o *cacheadmin.Options) {
		return func(o *cacheadmin.Options) {
			o.Allow = func(_ *http.Request, cache, verb string) (string, error) {
				asked = append(asked, verb+" "+cache)
				return who, err
			}
		}
	}
	for name, h := range map[string]http.Handler{
		"an error": admin(t, refuse("", errors.New("not you")), c),
		"no name":  admin(t, refuse("", nil), c),
	} {
		asked = nil
		for _, form := range []string{"do=invalidate&key=1", "do=refresh&key=1", "do=clear", "do=inspect&key=1", "key=1&cache=other", ""} {
			if a := post(t, h, form); a.status != http.StatusForbidden || a.Found != nil || a.Caches != nil || a.Who != "" {
				t.Errorf("%s: %s: %+v", name, form, a)
			}
		}
		if got := strings.Join(asked, ", "); got != "invalidate product, refresh product, clear product, inspect product, inspect other, inspect " {
			t.Errorf("%s: Allow was asked for %s", name, got)
		}
		if page := browse(t, h, http.MethodGet, ""); strings.Contains(page, "product") || strings.Contains(page, "<form") {
			t.Errorf("%s: the page is\n%s", name, page)
		}
	}
	if s := c.Stats(); s.Loads != 1 {
		t.Errorf("%+v", s)
	}
	gives(t, c, 1, "1 of edition 0")
}

// browse asks as a browser does.
func browse(t *testing.T, h http.Handler, method, query string) string {
	t.Helper()
	r := httptest.NewRequest(method, "http://caches.example/admin/levee?"+query, nil)
	r.Header.Set("Accept", "text/html,application/xhtml+xml")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, "text/html") {
		t.Errorf("a browser gets %s", got)
	}
	return w.Body.String()
}

// A page that an operator visits may send forms with the operator's login.
func TestAFormOfAnotherSiteIsRefused(t *testing.T) {
	s := &source{}
	c := s.open(t, nil)
	h := admin(t, nil, c)
	for _, of := range []struct {
		headers []string
		status  int
	}{
		{nil, http.StatusOK}, // no browser
		{[]string{"Sec-Fetch-Site", "same-origin", "Origin", "http://caches.example"}, http.StatusOK},
		{[]string{"Origin", "http://caches.example"}, http.StatusOK}, // without TLS browsers send no Sec-Fetch-Site
		{[]string{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"}, http.StatusForbidden},
		{[]string{"Sec-Fetch-Site", "same-site", "Origin", "https://blog.example"}, http.StatusForbidden},
		{[]string{"Origin", "https://evil.example"}, http.StatusForbidden},
		{[]string{"Origin", "null"}, http.StatusForbidden},
	} {
		gives(t, c, 1, fmt.Sprintf("1 of edition %d", s.edition.Load()))
		edition := s.edition.Add(1)
		if a := post(t, h, "do=invalidate&key=1", of.headers...); a.status != of.status {
			t.Errorf("%q: %+v", of.headers, a)
		}
		if of.status != http.StatusOK {
			edition = s.edition.Add(-1)
		}
		gives(t, c, 1, fmt.Sprintf("1 of edition %d", edition))
	}
}

// A link changes nothing, wherever it stands.
func TestAGetChangesNothing(t *testing.T) {
	c := (&source{}).open(t, nil)
	h := admin(t, nil, c)
	gives(t, c, 1, "1 of edition 0")
	for _, do := range []string{"invalidate", "expire", "refresh", "announce", "clear", "cleartags", "rebuildfilter"} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(method, "/?key=1&tag=tenant:7&do="+do, nil))
			if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") == "" {
				t.Errorf("%s %s: %d", method, do, w.Code)
			}
		}
	}
	if a := send(t, h, httptest.NewRequest(http.MethodGet, "/", nil)); a.status != http.StatusOK || len(a.Caches) != 1 || a.Caches[0] != "product" {
		t.Errorf("%+v", a)
	}
	if a := send(t, h, httptest.NewRequest(http.MethodGet, "/?key=1", nil)); a.status != http.StatusOK || a.Found[0].Local.State != "fresh" || a.Found[0].Local.Value != "" {
		t.Errorf("%+v", a)
	}
}

func TestKeysAreNamedByTheirText(t *testing.T) {
	s := &source{}
	numbers := s.open(t, nil)
	gives(t, numbers, 7, "7 of edition 0")
	words, err := cache.NewFrom(nil, cache.Source[string, string]{
		Load: func(_ context.Context, key string) (string, error) {
			return fmt.Sprintf("%s of edition %d", key, s.edition.Load()), nil
		},
		Key: func(key string) string { return "w-" + key },
	}, cache.Options{Name: "words", MaxKey: 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer words.Close()
	if _, err := words.Get(t.Context(), "a b"); err != nil {
		t.Fatal(err)
	}
	s.edition.Add(1)
	h := admin(t, nil, numbers, words)
	for _, of := range []struct {
		form   string
		status int
		error  string
	}{
		{"cache=product&do=invalidate&key=007", http.StatusOK, ""},
		{"cache=words&do=invalidate&key=w-a+b", http.StatusOK, ""},
		{"cache=words&do=refresh&key=w-a+b", http.StatusBadRequest, "cannot turn the text of a key back"},
		{"cache=product&do=invalidate&key=x", http.StatusBadRequest, "invalid key"},
		{"cache=product&do=refresh&key=x", http.StatusBadRequest, "invalid key"},
		{"cache=words&do=invalidate&key=w-a&key=" + strings.Repeat("x", 21), http.StatusBadRequest, "more than MaxKey"},
		{"cache=product&do=refresh&key=404", http.StatusBadGateway, "on fire"},
		{"do=invalidate&key=7", http.StatusNotFound, `no cache ""`},
		{"cache=other&do=clear", http.StatusNotFound, `no cache "other"`},
		{"cache=product&do=clear&key=7", http.StatusBadRequest, "takes no key"},
		{"cache=product&do=clear&tag=tenant:7", http.StatusBadRequest, "takes no tag"},
		{"cache=product&do=cleartags&key=7", http.StatusBadRequest, "takes a tag"},
		{"cache=words&do=expire&key=" + strings.Repeat("x", 21), http.StatusBadRequest, "more than MaxKey"},
		{"cache=product&do=inspect", http.StatusBadRequest, "takes a key"},
		{"cache=product&do=drop&key=7", http.StatusBadRequest, `no "drop"`},
		{"", http.StatusBadRequest, "nothing to do"},
		{"cache=product&do=inspect" + strings.Repeat("&key=7", 101), http.StatusBadRequest, "101 of key, and at most 100 are taken"},
		{"cache=product&key=" + strings.Repeat("7", 1<<20), http.StatusBadRequest, "too large"},
	} {
		if a := post(t, h, of.form); a.status != of.status || !strings.Contains(a.Error, of.error) || (of.error == "") != (a.Error == "") {
			t.Errorf("%.60s: want %d and %q, got %d and %q", of.form, of.status, of.error, a.status, a.Error)
		}
	}
	gives(t, numbers, 7, "7 of edition 1")
	if got, err := words.Get(t.Context(), "a b"); got != "a b of edition 1" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// What Redis has not confirmed is not done.
func TestWithoutRedisACallSaysSo(t *testing.T) {
	server := redistest.Start(t)
	c := (&source{}).open(t, server.Client(t))
	h := admin(t, nil, c)
	server.Kill()
	for _, form := range []string{"do=invalidate&key=1", "do=expire&key=1", "do=clear", "do=cleartags&tag=tenant:7"} {
		if a := post(t, h, form); a.status != http.StatusServiceUnavailable || !strings.Contains(a.Error, "not invalidated everywhere yet") {
			t.Errorf("%s: %+v", form, a)
		}
	}
	_ = c.Close()
	if a := post(t, h, "do=clear"); a.status != http.StatusServiceUnavailable || !strings.Contains(a.Error, "closed") {
		t.Errorf("of a closed cache: %+v", a)
	}
}

// Keys and names may hold anything. None of it may become a tag, an attribute or an address.
func TestThePageEscapesWhatItShows(t *testing.T) {
	c, err := cache.New(nil, func(context.Context, string) (string, error) { return "v", nil }, cache.Options{Name: `<script>"name"`, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := admin(t, nil, c)
	for _, key := range []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, "a\u202egpj.exe", "\xff\xfe", `</pre><script>`, `{{.}}`} {
		page := browse(t, h, http.MethodPost, url.Values{"key": {key}, "do": {"inspect"}}.Encode())
		if strings.Contains(page, "<script") || strings.Contains(page, "<img") || strings.Contains(page, "\u202e") || strings.Count(page, "</pre>") != 1 || !strings.Contains(page, "Done") {
			t.Errorf("%q: the page is\n%s", key, page)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	_, rest, _ := strings.Cut(browse(t, h, http.MethodGet, ""), "<style>")
	style, _, _ := strings.Cut(rest, "</style>")
	sum := sha256.Sum256([]byte(style))
	if policy := w.Header().Get("Content-Security-Policy"); len(style) < 100 ||
		!strings.Contains(policy, "style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'") || !strings.Contains(policy, "default-src 'none'") {
		t.Errorf("the policy is %q, the style %d bytes", policy, len(style))
	}
}

// Catches an escape of five digits, which reads as another character and a digit.
func TestAnAnswerIsJSONWhateverItHolds(t *testing.T) {
	h := admin(t, nil, (&source{}).open(t, nil))
	for _, key := range []string{"\u202e", "\U000e0041", "\U0010ffff", "lamp"} {
		if a := post(t, h, url.Values{"do": {"clear"}, "key": {key}}.Encode()); len(a.Keys) != 1 || a.Keys[0] != key {
			t.Errorf("%q is %q", key, a.Keys)
		}
	}
}

// The forms of the page do what their buttons say.
func TestThePageHasAFormForEachVerb(t *testing.T) {
	c := (&source{}).open(t, nil)
	exists, err := bloom.New(bloom.Options{Capacity: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer exists.Close()
	filtered, err := cache.New(nil, func(context.Context, string) (string, error) { return "v", nil },
		cache.Options{Name: "filtered", Filter: exists, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer filtered.Close()
	none := func(context.Context) iter.Seq2[string, error] { return func(func(string, error) bool) {} }
	server := httptest.NewServer(admin(t, nil, c, cacheadmin.WithScan(filtered, none)))
	defer server.Close()
	page := browse(t, server.Config.Handler, http.MethodGet, "")
	for _, do := range []string{"inspect", "invalidate", "expire", "refresh", "announce", "clear", "cleartags", "filter", "rebuildfilter"} {
		if !strings.Contains(page, `name="do" value="`+do+`"`) {
			t.Errorf("no button for %s in\n%s", do, page)
		}
		form, want := url.Values{"cache": {"product"}, "do": {do}}, http.StatusOK
		switch do {
		case "clear":
		case "cleartags":
			form.Set("tag", "tenant:7")
		case "filter":
			form.Set("cache", "filtered")
		case "rebuildfilter":
			form.Set("cache", "filtered")
			want = http.StatusAccepted
		default:
			form.Set("key", "1")
		}
		response, err := http.PostForm(server.URL, form)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %s", do, body)
		}
	}
}

package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/cache/cachedebug"
	"github.com/levee-go/levee/examples/internal/servers"
	"github.com/levee-go/levee/internal/dbtest"
	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

// With -redis and -postgres the shops stand on servers of the user's: both serve, a changed price reaches every process, Redis can be
// taken away and given back, and nothing is left behind.
func TestTheFlagsTakeRealServers(t *testing.T) {
	database, err := dbtest.Postgres()
	dbtest.Available(t, err)
	t.Cleanup(func() {
		database.Kill()
		_ = os.RemoveAll(database.Dir)
	})
	t.Setenv("GORACE", race.QuickExit())
	server := redistest.Start(t)
	rdb := server.Client(t)
	rdb.Set(t.Context(), "of-another-program", 1, 0)
	dsn := database.PostgresURL("postgres", "postgres")
	o, err := parse([]string{"-redis", server.Addr(), "-postgres", dsn}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o.size = testScale
	s, err := o.size.open(t.Context(), o.redis, o.postgres)
	if err != nil {
		t.Fatal(err)
	}
	open := true
	end := func() {
		if open {
			open = false
			if err := s.close(); err != nil {
				t.Error(err)
			}
		}
	}
	defer end()
	if want := "Redis at " + server.Addr() + " and two databases in PostgreSQL"; s.about != want {
		t.Errorf("the page says that the shops run on %q, want %q", s.about, want)
	}
	visitBoth(t, s)

	l := newLive(s)
	press := func(name string) {
		t.Helper()
		if err := l.press(t.Context(), name); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	press("price")
	redistest.Eventually(t, 20*time.Second, "every process serves the new price", func() bool {
		l.lock.Lock()
		defer l.lock.Unlock()
		for _, side := range l.change.Served {
			for _, ms := range side {
				if ms < 0 {
					return false
				}
			}
		}
		return true
	})
	press("stop-redis")
	levee := s.fleets[leveeSide]
	for range testScale.processes {
		if r := levee.visit(t.Context(), levee.next(), hot); r.err != nil || r.status != http.StatusOK {
			t.Errorf("without Redis levee answers %+v", r)
		}
	}
	press("heal")
	visitBoth(t, s)

	end()
	if keys := rdb.Keys(t.Context(), "*").Val(); len(keys) != 1 {
		t.Errorf("left behind in Redis: %q", keys)
	}
	var schemas int
	db, err := servers.Source{DSN: dsn}.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'levee%'").Scan(&schemas); err != nil || schemas > 0 {
		t.Errorf("left behind in PostgreSQL: %d schemas, %v", schemas, err)
	}
}

// A price that is committed while Redis is away is no failure: the owner of the shop would be told that it has not changed, and try again.
func TestAPriceChangesWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	db, err := servers.OpenDatabase(t.Context(), "", "prices")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := testScale.size.fill(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	log := cachedebug.NewLog(nil, 50)
	s := &protected{
		rdb: server.Client(t), store: &Store{db: db.DB, size: testScale.size}, prefix: "prices",
		ttl: testScale.ttl, timeout: testScale.timeout, places: testScale.places, log: slog.New(log),
	}
	if err := s.open(t.Context(), allProtections); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	server.Kill()
	mux := http.NewServeMux()
	(&service{s}).routes(mux)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/product/1/price?cents=7", nil))
	if w.Code != http.StatusOK {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	if p, err := s.store.Product(t.Context(), hot); err != nil || p.Cents != 7 {
		t.Errorf("%+v, %v", p, err)
	}
}

// Without a redis-server there is still something to look at, and the page says how to get one.
func TestWithoutARedisServerASmallOneServes(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("GORACE", race.QuickExit())
	size := testScale
	size.processes = 1
	s, err := size.open(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	if !strings.Contains(s.note, "apt-get install redis-server") {
		t.Errorf("the note is %q", s.note)
	}
	visitBoth(t, s)
}

// visitBoth asks both shops for what there is and for what there is not.
func visitBoth(t *testing.T, s *stage) {
	t.Helper()
	for side, f := range s.fleets {
		for id, want := range map[int64]int{hot: http.StatusOK, testScale.size.Products: http.StatusOK, testScale.size.Products + 1: http.StatusNotFound, 1e9: http.StatusNotFound} {
			if r := f.visit(t.Context(), f.next(), id); r.err != nil || r.status != want {
				t.Errorf("%s: product %d: %+v", sideNames[side], id, r)
			}
		}
		if ends := s.expiries(t.Context())[side]; len(ends) == 0 {
			t.Errorf("%s: no product expires", sideNames[side])
		}
	}
}

// The controls are for the page alone: another site's page cannot send the header that they ask for.
func TestControlsRefuseOtherSites(t *testing.T) {
	page := newLive(&stage{scale: testScale}).routes()
	for _, path := range []string{"/press/flood", "/turn/filter/off"} {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
		if w.Code != http.StatusForbidden {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

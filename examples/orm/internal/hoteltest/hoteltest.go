// Package hoteltest runs a service of the examples as two processes, over a real database and a real Redis,
// and checks what they serve.
package hoteltest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/dbtest"
	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

// variable makes a test's program the service, as main is.
const variable = "LEVEE_HOTELS"

// Main is to be called by TestMain, and does not return. It runs the tests, or main in the processes that they start.
func Main(m *testing.M, main func(), server *dbtest.Shared) {
	if os.Getenv(variable) != "" {
		main()
		os.Exit(0)
	}
	dbtest.Main(m, server)
}

// Tables are the statements that make the table of the services, with four hotels, in either database.
var Tables = []string{
	"CREATE TABLE hotels (id bigint PRIMARY KEY, name varchar(100) NOT NULL, city varchar(100) NOT NULL)",
	"INSERT INTO hotels VALUES (1, 'Bristol', 'Oslo'), (2, 'Astoria', 'Oslo'), (3, 'Ritz', 'Rome'), (4, 'Savoy', 'Rome')",
}

// A Database is where the service has its table.
type Database struct {
	Env    []string                                // tells the service where
	ByHand func(t testing.TB, id int, city string) // moves a hotel as a program does that does not use levee
	Kill   func()                                  // ends the server
}

// Run checks that two processes see what either of them and others have written, also if the writer dies after
// its commit, and that they serve what they have read without their database.
func Run(t *testing.T, d Database) {
	rdb := redistest.Start(t)
	d.writes(t, rdb)
	one, other := start(t, d.Env, rdb.Addr()), start(t, d.Env, rdb.Addr())
	for _, city := range []string{"Rome", "Oslo", "Lima"} {
		d.ByHand(t, 1, city)
		one.follows(t, city)
		other.follows(t, city)
	}

	// A process commits, and dies before it can tell Redis.
	proxy := redistest.Proxy(t, rdb.Addr())
	writer := start(t, d.Env, proxy.Addr())
	proxy.Blackhole(true)
	writer.wants(t, "PUT /hotel/1/city/Oslo", 200, "")
	writer.kill()
	one.follows(t, "Oslo")
	other.follows(t, "Oslo")

	one.wants(t, "GET /hotel/404", 404, "")
	d.Kill()
	for _, p := range []*process{one, other} {
		p.wants(t, "GET /hotel/1", 200, "Oslo")
		p.wants(t, "GET /city/Rome", 200, "Ritz")
	}
	one.wants(t, "GET /hotel/404", 404, "")
	one.wants(t, "PUT /hotel/1/city/Rome", 503, "")
	one.wants(t, "GET /hotel/1", 200, "Oslo")
}

// writes checks what a process sees of its own writes at once. A log of the database, which would help a write
// that names too few keys, is out of reach meanwhile.
func (d Database) writes(t *testing.T, rdb *redistest.Server) {
	alone := slices.Concat(d.Env, []string{"DATABASE_ADDR=127.0.0.1:1", "FEED_URL=postgres://127.0.0.1:1/none"})
	one, other := start(t, alone, rdb.Addr()), start(t, alone, rdb.Addr())
	defer one.kill()
	defer other.kill()
	one.wants(t, "GET /hotel/1", 200, "Bristol")
	for id := range 50 { // none of which counts as a failure of the database, as 20 in a row would
		one.wants(t, fmt.Sprint("GET /hotel/", 1000+id), 404, "")
	}
	one.wants(t, "PUT /hotel/404/city/Rome", 404, "")
	one.wants(t, "GET /city/Nowhere", 200, "")
	for i := range 20 {
		from, to := "Oslo", "Lima"
		if i%2 == 1 {
			from, to = to, from
		}
		one.wants(t, "GET /city/"+from, 200, "Bristol")
		one.wants(t, "PUT /hotel/1/city/"+to, 200, "")
		one.wants(t, "GET /hotel/1", 200, to)
		one.wants(t, "GET /city/"+to, 200, "Bristol")
		if body := one.wants(t, "GET /city/"+from, 200, ""); strings.Contains(body, "Bristol") {
			t.Fatalf("it has moved to %s, and in %s there are still %s", to, from, body)
		}
	}
	other.follows(t, "Oslo")
	for _, spelling := range []string{"oslo", "Oslo%20"} { // a collation of MySQL finds Oslo by these
		one.wants(t, "PUT /hotel/1/city/Oslo", 200, "")
		one.wants(t, "GET /city/"+spelling, 200, "")
		one.wants(t, "PUT /hotel/1/city/Lima", 200, "")
		if body := one.wants(t, "GET /city/"+spelling, 200, ""); strings.Contains(body, "Bristol") {
			t.Fatalf("it has moved to Lima, and in %s there are still %s", spelling, body)
		}
	}
	other.follows(t, "Lima")
}

// A process is one of the service.
type process struct {
	url  string
	kill func()
}

func start(t *testing.T, env []string, rdb string) *process {
	t.Helper()
	addr := fmt.Sprint("127.0.0.1:", redistest.FreePort())
	cmd, out := exec.Command(os.Args[0]), new(strings.Builder)
	cmd.Env = slices.Concat(os.Environ(), env, []string{"GORACE=" + race.QuickExit(), variable + "=1", "ADDR=" + addr, "REDIS_ADDR=" + rdb})
	cmd.Stdout, cmd.Stderr = out, out
	kill, err := redistest.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{"http://" + addr, redistest.Once(kill)}
	t.Cleanup(func() {
		if p.kill(); t.Failed() {
			t.Logf("a service:\n%s", out)
		}
	})
	redistest.Eventually(t, 30*time.Second, "the service answers", func() bool {
		_, _, err := p.do("GET /hotel/1")
		return err == nil
	})
	return p
}

func (p *process) do(call string) (status int, body string, err error) {
	method, path, _ := strings.Cut(call, " ")
	req, err := http.NewRequest(method, p.url+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// wants checks a call's status, and that its body contains something.
func (p *process) wants(t *testing.T, call string, status int, part string) string {
	t.Helper()
	got, body, err := p.do(call)
	if err != nil || got != status || !strings.Contains(body, part) {
		t.Fatalf("%s: %d %s %v; want %d and %q", call, got, body, err, status, part)
	}
	return body
}

// follows waits until the process serves hotel 1 in a city, and in no other.
func (p *process) follows(t *testing.T, city string) {
	t.Helper()
	redistest.Eventually(t, 30*time.Second, "a process sees the hotel in "+city, func() bool {
		for _, at := range []string{"Oslo", "Lima", "Rome"} {
			if _, body, err := p.do("GET /city/" + at); err != nil || strings.Contains(body, "Bristol") != (at == city) {
				return false
			}
		}
		var h struct{ City string }
		_, body, err := p.do("GET /hotel/1")
		return err == nil && json.Unmarshal([]byte(body), &h) == nil && h.City == city
	})
}

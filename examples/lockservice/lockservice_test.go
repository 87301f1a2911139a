package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// serviceVariable makes this program the service, as main is.
const serviceVariable = "LEVEE_LOCKSERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(serviceVariable) != "" {
		main()
		os.Exit(0)
	}
	redistest.Main(m, nil)
}

// open starts the service twice on one Redis.
func open(t *testing.T) (urls [2]string) {
	server := redistest.Start(t)
	for i := range urls {
		rdb := server.Client(t)
		locker, err := lock.New(rdb, lock.Options{Prefix: "lockservice"})
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewServer((&service{locker, rdb}).routes())
		t.Cleanup(func() { web.Close(); locker.Close() })
		urls[i] = web.URL
	}
	return urls
}

func call(t *testing.T, method, url string, header ...string) (status int, g grant) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < 300 && resp.StatusCode != http.StatusNoContent {
		if err := json.NewDecoder(resp.Body).Decode(&g); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, g
}

// A client that repeats a request whose answer was lost must not be told that somebody else has the lock: it is its own.
func TestAnAcquireMayBeRepeated(t *testing.T) {
	urls := open(t)
	status, first := call(t, "POST", urls[0]+"/locks/report?for=1m", "Idempotency-Key", "job-7")
	if status != http.StatusCreated || first.Token == "" || first.Fence == 0 {
		t.Fatalf("status %d, %+v", status, first)
	}
	if status, again := call(t, "POST", urls[1]+"/locks/report?for=1m", "Idempotency-Key", "job-7"); status != http.StatusCreated || again != first {
		t.Errorf("repeated at the other instance: status %d, %+v, want %+v", status, again, first)
	}
	if status, _ := call(t, "POST", urls[1]+"/locks/report?for=1m", "Idempotency-Key", "job-8"); status != http.StatusConflict {
		t.Errorf("status %d for somebody else", status)
	}
	if status, _ := call(t, "POST", urls[1]+"/locks/other?for=1m", "Idempotency-Key", "job-7"); status != http.StatusCreated {
		t.Errorf("status %d for another lock with the same key", status)
	}
	for range 2 { // a release may be repeated as well
		if status, _ := call(t, "DELETE", urls[1]+"/locks/report", "Lock-Token", string(first.Token)); status != http.StatusNoContent {
			t.Errorf("release: status %d", status)
		}
	}
	status, next := call(t, "POST", urls[0]+"/locks/report?for=1m", "Idempotency-Key", "job-8")
	if status != http.StatusCreated || next.Fence <= first.Fence {
		t.Errorf("status %d, fence %d after %d", status, next.Fence, first.Fence)
	}
	if status, late := call(t, "POST", urls[1]+"/locks/report?for=1m", "Idempotency-Key", "job-7"); status != http.StatusConflict {
		t.Errorf("repeated when somebody else has the lock: status %d, %+v", status, late)
	}
	_, _ = call(t, "DELETE", urls[1]+"/locks/report", "Lock-Token", string(next.Token))
	if status, anew := call(t, "POST", urls[1]+"/locks/report?for=1m", "Idempotency-Key", "job-7"); status != http.StatusCreated || anew.Fence <= next.Fence {
		t.Errorf("repeated when the lock is free: status %d, fence %d after %d", status, anew.Fence, next.Fence)
	}
}

// Whoever has been handed the token goes on. The one who handed it over cannot come back.
func TestATokenIsHandedOver(t *testing.T) {
	urls := open(t)
	_, first := call(t, "POST", urls[0]+"/locks/report?for=1m", "Idempotency-Key", "a")
	status, second := call(t, "PUT", urls[1]+"/locks/report?for=1m", "Lock-Token", string(first.Token))
	if status != http.StatusOK || second.Token == first.Token || second.Fence != first.Fence {
		t.Fatalf("status %d, %+v after %+v", status, second, first)
	}
	for method, want := range map[string]int{"PUT": http.StatusPreconditionFailed, "DELETE": http.StatusPreconditionFailed} {
		if status, _ := call(t, method, urls[0]+"/locks/report?for=1m", "Lock-Token", string(first.Token)); status != want {
			t.Errorf("%s with the old token: status %d, want %d", method, status, want)
		}
	}
	if status, again := call(t, "POST", urls[0]+"/locks/report?for=1m", "Idempotency-Key", "a"); status != http.StatusConflict {
		t.Errorf("status %d for the request that got the old token: %+v", status, again)
	}
	if status, _ := call(t, "DELETE", urls[0]+"/locks/report", "Lock-Token", string(second.Token)); status != http.StatusNoContent {
		t.Errorf("status %d", status)
	}
	if status, _ := call(t, "PUT", urls[0]+"/locks/report", "Lock-Token", "nonsense"); status != http.StatusBadRequest {
		t.Errorf("status %d for a token that is none", status)
	}
}

func TestALockEndsWithItsTime(t *testing.T) {
	urls := open(t)
	if status, _ := call(t, "POST", urls[0]+"/locks/report?for=1s", "Idempotency-Key", "a"); status != http.StatusCreated {
		t.Fatalf("status %d", status)
	}
	redistest.Eventually(t, 10*time.Second, "somebody else gets it", func() bool {
		status, _ := call(t, "POST", urls[1]+"/locks/report?for=1m", "Idempotency-Key", "b")
		return status == http.StatusCreated
	})
}

// A deployment ends the service with SIGTERM. A POST that it has begun is answered: the lock would stay taken, and nobody have the token.
func TestTheServiceEndsWhenItsRequestsHaveEnded(t *testing.T) {
	addr := fmt.Sprint("127.0.0.1:", redistest.FreePort())
	service := exec.CommandContext(t.Context(), os.Args[0], "-addr", addr, "-redis", redistest.Start(t).Addr())
	service.Env = append(os.Environ(), "GORACE="+race.QuickExit(), serviceVariable+"=1")
	log := new(strings.Builder)
	service.Stdout, service.Stderr = log, log
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 30*time.Second, "the service listens", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	// It has begun the request when it asks for the body.
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST /locks/report HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: a\r\nExpect: 100-continue\r\n"+
		"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 7\r\n\r\n")
	answers := bufio.NewReader(conn)
	if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, " 100 ") {
		t.Fatalf("%q, %v", line, err)
	}
	if _, err := answers.ReadString('\n'); err != nil { // an empty line
		t.Fatal(err)
	}
	if err := service.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 10*time.Second, "the service takes no more requests", func() bool {
		late, err := net.Dial("tcp", addr)
		if err == nil {
			late.Close()
		}
		return err != nil
	})
	_, _ = io.WriteString(conn, "for=30s")
	if resp, err := http.ReadResponse(answers, nil); err != nil {
		t.Errorf("the request under way: %v", err)
	} else if resp.Body.Close(); resp.StatusCode != http.StatusCreated {
		t.Errorf("the request under way: status %d", resp.StatusCode)
	}
	if err := service.Wait(); err != nil {
		t.Errorf("the service ended with %v:\n%s", err, log)
	}
}

func TestOneOfManyGetsIt(t *testing.T) {
	urls := open(t)
	var got sync.Map
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if status, g := call(t, "POST", urls[i%2]+"/locks/report?for=1m", "Idempotency-Key", string(rune('a'+i))); status == http.StatusCreated {
				got.Store(g.Token, true)
			}
		})
	}
	all.Wait()
	n := 0
	got.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d got it", n)
	}
}

// Package redistest runs Redis for the tests of the other packages, and breaks
// it in the ways it breaks in production.
//
//   - Start runs a real redis-server that a test can freeze, kill and restart;
//     Cluster and Sentinel run several.
//   - Mini runs a server inside the test process, for testing/synctest bubbles,
//     where an hour of TTL takes no time.
//   - Proxy stands between a client and a server and spoils the connection:
//     late, lost, exchanged or cut replies, links that swallow everything.
//   - Main and Child run parts of a test as other operating-system processes,
//     which can be stopped and killed at named points.
//
// Everything a test starts ends with the test, and what runs as a process of
// its own ends even if the test process is killed.
//
// A real server is always wanted where a promise is checked. "make redis" installs
// it; without one, go test skips the test and says so. The environment variable
// LEVEE_REDIS_SERVER names another binary, such as another version or a
// valkey-server; where it is set, as make sets it, a test without a server fails.
//
// # Long tests
//
// There is one switch: LEVEE_LONG=1, or a duration such as LEVEE_LONG=30m. A test
// that is only worth its time now and then starts with [Long]; one that comes in
// two sizes takes the size from [Pick]. Tests named TestChaos… and TestSoak… are
// what "make chaos" and "make soak" run.
package redistest

import (
	"iter"
	"os"
	"sync"
	"testing"
	"time"
)

// Long skips the test unless LEVEE_LONG is set. It returns how long a test that
// could go on for ever should do so: LEVEE_LONG if that is a duration, else a minute.
func Long(t testing.TB) time.Duration {
	t.Helper()
	if !long() {
		t.Skip("a long test: set LEVEE_LONG=1, or use make long, make chaos or make soak")
	}
	if d, err := time.ParseDuration(os.Getenv("LEVEE_LONG")); err == nil {
		return d
	}
	return time.Minute
}

// Rounds skips the test unless LEVEE_LONG is set. It is for a test whose figure is a
// number of rounds: there are n or, if LEVEE_LONG is a duration, as many as begin
// within that time, and one at least.
func Rounds(t testing.TB, n int) iter.Seq[int] {
	t.Helper()
	timed, end := lasts(), time.Now().Add(Long(t))
	return func(yield func(int) bool) {
		for i := 0; timed && (i == 0 || time.Now().Before(end)) || !timed && i < n; i++ {
			if !yield(i) {
				return
			}
		}
	}
}

// Quota is for goroutines that share a number of operations. It skips the test unless
// LEVEE_LONG is set, and tells each caller whether one more is wanted: n in all or, if
// LEVEE_LONG is a duration, as many as begin within that time.
func Quota(t testing.TB, n int) func() bool {
	t.Helper()
	next, stop := iter.Pull(Rounds(t, n))
	t.Cleanup(stop)
	var mu sync.Mutex
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		_, more := next()
		return more
	}
}

// lasts tells whether LEVEE_LONG says how long.
func lasts() bool {
	_, err := time.ParseDuration(os.Getenv("LEVEE_LONG"))
	return err == nil
}

// Pick returns the size or duration of a test: short in an ordinary run, long
// when LEVEE_LONG is set.
func Pick[T any](short, longer T) T {
	if long() {
		return longer
	}
	return short
}

// Length is Pick for how long a test lasts, which LEVEE_LONG may say itself.
func Length(short, longer time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv("LEVEE_LONG")); err == nil {
		return d
	}
	return Pick(short, longer)
}

func long() bool { return os.Getenv("LEVEE_LONG") != "" }

// Must returns v, for a call that a test cannot go on without. It panics if err is not nil, and so
// needs no testing.TB: it may stand in the middle of an expression and on any goroutine.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Eventually waits until cond holds and fails the test if it does not within
// the given time, of a quiet machine: one at a load of 16 gets four times as long. It
// asks every 2 ms; cond runs on the caller's goroutine.
func Eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	if within *= 4; !poll(within, cond) {
		t.Fatalf("redistest: waited %v in vain: %s", within, what)
	}
}

func poll(within time.Duration, cond func() bool) bool {
	for end := time.Now().Add(within); ; time.Sleep(2 * time.Millisecond) {
		if cond() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

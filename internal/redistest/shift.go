package redistest

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

//go:embed testdata/clock.c
var clockC []byte

// StartShifted starts a server whose clock can be set. It needs Linux and a C
// compiler, as the race detector does.
func StartShifted(t *testing.T, args ...string) (s *Server, shift func(time.Duration)) {
	t.Helper()
	Need(t)
	dir := t.TempDir()
	source := filepath.Join(dir, "clock.c")
	if err := os.WriteFile(source, clockC, 0o600); err != nil {
		t.Fatal(err)
	}
	library, wrapper, file := filepath.Join(dir, "clock.so"), filepath.Join(dir, "redis-server"), filepath.Join(dir, "shift")
	if said, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", library, source).CombinedOutput(); err != nil {
		t.Skipf("no C compiler for the clock: %v %s", err, said)
	}
	server := os.Getenv("LEVEE_REDIS_SERVER")
	if server == "" {
		server = "redis-server"
	}
	script := fmt.Sprintf("#!/bin/sh\nCLOCK_SHIFT='%s' LD_PRELOAD='%s' exec '%s' \"$@\"\n", file, library, server)
	if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	set := func(d time.Duration) {
		text := fmt.Sprintf("%-20d", d.Microseconds()) // all of it in one write, over what stood there
		f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Error(err)
		}
	}
	set(0)
	before := os.Getenv("LEVEE_REDIS_SERVER")
	t.Setenv("LEVEE_REDIS_SERVER", wrapper)
	s = Start(t, args...)
	t.Setenv("LEVEE_REDIS_SERVER", before) // the next one has a wrapper of its own
	set(time.Hour)
	if now := s.Client(t).Time(t.Context()).Val(); time.Until(now) < 59*time.Minute {
		t.Skipf("the server's clock cannot be set: it says %v", now) // linked statically, or not on Linux
	}
	control := s.Client(t)
	shift = func(d time.Duration) {
		set(d)
		Eventually(t, 10*time.Second, "scripts see the server's clock at "+d.String(), func() bool { // newer servers read it once for several commands
			seconds, err := control.Eval(t.Context(), "return redis.call('TIME')[1]", nil).Int64()
			return err == nil && time.Until(time.Unix(seconds, 0).Add(-d)).Abs() < 5*time.Second
		})
	}
	shift(0)
	return s, shift
}

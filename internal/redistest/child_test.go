package redistest

import (
	"testing"
	"time"

	"github.com/levee-go/levee/internal/race"
)

func TestParentAndChildTalkInLines(t *testing.T) {
	c := Child(t, "echo", "-x", "two words")
	if got := c.Expect("args "); got != `["-x" "two words"]` {
		t.Errorf("its arguments are %s", got)
	}
	for i := range 3 {
		c.Send("line %d", i)
	}
	if got := c.Expect("echo line 2"); got != "" { // out of order: the others stay
		t.Errorf("got %q", got)
	}
	c.Send("stop")
	for _, want := range []string{"echo line 0", "echo line 1"} {
		if got, ok := c.Next(); !ok || got != want {
			t.Errorf("got %q, %v, want %q", got, ok, want)
		}
	}
	if got, ok := c.Next(); ok {
		t.Errorf("after its end it said %q", got)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}

// A Pause that takes any "go" lets both goroutines run here.
func TestGoLetsOnePausedGoroutineGoOn(t *testing.T) {
	c := Child(t, "pauser", "2")
	c.Expect("at:load")
	c.Expect("at:load")
	c.Go("elsewhere")
	c.Go("load")
	c.Expect("went on")
	if line, err := c.lines.take(func(string) bool { return true }, 50*time.Millisecond); err == nil {
		t.Errorf("the other said %q", line)
	}
	c.Go("load")
	c.Expect("went on")
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}

func TestAChildThatFailedSaysSo(t *testing.T) {
	for _, role := range []string{"failing", "leaking", "unknown"} {
		c, err := startChild(t, role, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err == nil || err.Error() != "exit status 1" {
			t.Errorf("%s: got %v", role, err)
		}
		inner := &recorder{TB: t}
		c.t = inner
		c.end()
		if inner.errors != 1 {
			t.Errorf("%s: its end went unnoticed", role)
		}
	}
}

func TestARaceInAChildFailsIt(t *testing.T) {
	if !race.Detector {
		t.Skip("needs -race")
	}
	c, err := startChild(&recorder{TB: t}, "racing", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.end()
	if err := c.Wait(); err == nil || err.Error() != "exit status 66" {
		t.Errorf("got %v", err)
	}
}

func TestAKilledChildIsNoFailure(t *testing.T) {
	inner := &recorder{TB: t}
	c, err := startChild(inner, "pauser", []string{"1"})
	if err != nil {
		t.Fatal(err)
	}
	c.Expect("at:load")
	c.Kill()
	if err := c.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("got %v", err)
	}
	c.end()
	if inner.errors != 0 {
		t.Error("reported")
	}
}

func TestAFrozenChildSaysNothing(t *testing.T) {
	c := Child(t, "echo")
	c.Expect("args ")
	c.Stop()
	c.Send("hello")
	if line, err := c.lines.take(func(string) bool { return true }, 100*time.Millisecond); err == nil {
		t.Errorf("it said %q", line)
	}
	c.Cont()
	c.Expect("echo hello")
	c.Stop() // the end of the test kills it all the same
}

// A child whose parent goes away ends by itself too, before any guard acts.
func TestAChildEndsWithItsInput(t *testing.T) {
	c, err := startChild(t, "pauser", []string{"1"})
	if err != nil {
		t.Fatal(err)
	}
	c.Expect("at:load")
	_ = c.in.Close()
	if err := c.Wait(); err == nil || err.Error() != "exit status 3" {
		t.Errorf("got %v", err)
	}
	c.proc.kill()
}

// recorder counts the errors that would fail a test.
type recorder struct {
	testing.TB
	errors int
}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors++
	r.Logf("reported: "+format, args...)
}

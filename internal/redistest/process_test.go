//go:build unix

package redistest

import (
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
)

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// Without the guard the process outlives its parent, for ten minutes here.
func TestAFrozenProcessDiesWithAParentThatIsKilled(t *testing.T) {
	c := Child(t, "parent")
	pid, err := strconv.Atoi(c.Expect("child "))
	if err != nil {
		t.Fatal(err)
	}
	if !alive(pid) {
		t.Fatal("the process does not run while its parent does")
	}
	c.Kill()
	Eventually(t, 10*time.Second, "the orphan ends", func() bool { return !alive(pid) || zombie(t, pid) })
}

// zombie tells whether a process is dead and only waits to be noticed: the
// process that adopts orphans may take its time, or in a container never do it.
func zombie(t *testing.T, pid int) bool {
	state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && len(state) > 0 && state[0] == 'Z'
}

func TestAProcessThatEndedDismissesItsGuard(t *testing.T) {
	p, err := startProcess(exec.Command("true"))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the guard still stands")
	}
	if p.err != nil || p.running() {
		t.Errorf("ended with %v, running: %v", p.err, p.running())
	}
	if err := p.stop(); err == nil {
		t.Error("a process that is gone could be stopped")
	}
	p.kill()
}

func TestStopReturnsWhenTheProcessStandsStill(t *testing.T) {
	p, err := startSleeper()
	if err != nil {
		t.Fatal(err)
	}
	defer p.kill()
	for range 20 {
		if err := p.stop(); err != nil || !frozen(p.cmd.Process.Pid) {
			t.Fatalf("%v, frozen: %v", err, frozen(p.cmd.Process.Pid))
		}
		if err := p.cont(); err != nil {
			t.Fatal(err)
		}
		Eventually(t, 5*time.Second, "it goes on", func() bool { return !frozen(p.cmd.Process.Pid) })
	}
}

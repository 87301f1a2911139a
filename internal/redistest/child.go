package redistest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/levee-go/levee/internal/race"
)

// A test that needs other processes runs its own binary again, in a role:
//
//	func TestMain(m *testing.M) {
//		redistest.Main(m, redistest.Roles{"holder": holder})
//	}
//
//	func holder(p *redistest.Parent, args []string) error {
//		rdb := redis.NewClient(&redis.Options{Addr: args[0]})
//		defer rdb.Close()
//		… take the lock …
//		p.Pause("locked") // until the parent says so, or kills us here
//		return nil
//	}
//
//	func TestSomething(t *testing.T) {
//		c := redistest.Child(t, "holder", server.Addr())
//		c.Expect("at:locked")
//		c.Kill()
//	}
//
// The two talk in lines, over the child's standard input and output: a child
// that reaches a point says "at:point" and waits for "go:point"; all other lines
// are the test's own. What a child writes to its standard error is shown with
// the test's output.

// roleVariable is the environment variable that tells a child its role.
const roleVariable = "LEVEE_TEST_ROLE"

// A Role is the main function of a child process. Returning an error ends the
// process with status 1.
type Role func(p *Parent, args []string) error

// Roles are the roles of a test binary by name.
type Roles map[string]Role

// Main is to be called by TestMain, and does not return. In the test process it
// runs the tests and fails if goroutines are left at the end; in a child, it runs
// the child's role with the same check. options are for the test process's check.
func Main(m *testing.M, roles Roles, options ...goleak.Option) {
	if name := os.Getenv(roleVariable); name != "" {
		os.Exit(play(name, roles[name]))
	}
	goleak.VerifyTestMain(m, append(options, ending)...)
}

// ending is a goroutine that is about to go: once a go-redis pool cannot reach
// its server it tries again each second, and notices only then that it was closed.
var ending = goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")

func play(name string, role Role) (status int) {
	if role == nil {
		fmt.Fprintf(os.Stderr, "redistest: there is no role %q\n", name)
		return 1
	}
	p := &Parent{lines: newMailbox()}
	go p.listen(os.Stdin)
	ours := goleak.IgnoreCurrent()
	err := role(p, os.Args[1:])
	if err == nil {
		err = goleak.Find(ours, ending)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "redistest: child %q: %v\n", name, err)
		return 1
	}
	return 0
}

// Parent is the child's connection to the test that started it. Its methods may
// be called concurrently.
type Parent struct {
	lines *mailbox
	out   sync.Mutex // lines must not mix
}

// Say sends a line to the parent.
func (p *Parent) Say(format string, args ...any) {
	p.out.Lock()
	defer p.out.Unlock()
	fmt.Fprintf(os.Stdout, format+"\n", args...)
}

// Next returns the next line from the parent that no Pause waits for.
func (p *Parent) Next() string {
	return p.take(func(line string) bool { return !strings.HasPrefix(line, "go:") })
}

// Pause tells the parent that this goroutine has reached a point, and waits for
// one go:point. Several goroutines may pause, at one point or at several.
func (p *Parent) Pause(point string) {
	p.Say("at:%s", point)
	p.take(func(line string) bool { return line == "go:"+point })
}

func (p *Parent) take(wanted func(line string) bool) string {
	line, err := p.lines.take(wanted, forever)
	if err != nil {
		select {} // the parent is gone, and listen is about to end us: nobody said go
	}
	return line
}

// listen ends the process when the parent is gone.
func (p *Parent) listen(in io.Reader) {
	p.lines.fill(in)
	os.Exit(3)
}

// ChildProcess is a child as its parent sees it. Its methods may be called
// concurrently.
type ChildProcess struct {
	t      testing.TB
	role   string
	proc   *process
	in     io.WriteCloser
	lines  *mailbox
	heard  chan struct{} // closed when all the child said has been read
	killed atomic.Bool
}

// Child starts a child process in one of the roles that Main was given. At the
// end of t it is killed if it still runs; the test fails if it had failed before.
func Child(t testing.TB, role string, args ...string) *ChildProcess {
	t.Helper()
	c, err := startChild(t, role, args)
	if err != nil {
		t.Fatalf("redistest: child %q: %v", role, err)
	}
	t.Cleanup(c.end)
	return c
}

func startChild(t testing.TB, role string, args []string) (*ChildProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// A pipe of our own: the one of exec.Cmd is closed at the child's end, with
	// its last lines unread.
	out, childOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer childOut.Close()
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, "GORACE="+race.QuickExit())
	cmd.Stdout, cmd.Stderr = childOut, os.Stderr
	c := &ChildProcess{t: t, role: role, lines: newMailbox(), heard: make(chan struct{})}
	if c.in, err = cmd.StdinPipe(); err == nil {
		c.proc, err = startProcess(cmd)
	}
	if err != nil {
		_ = out.Close()
		return nil, err
	}
	go func() {
		defer close(c.heard)
		defer out.Close()
		c.lines.fill(out)
	}()
	return c, nil
}

// end is the test's cleanup.
func (c *ChildProcess) end() {
	failed := !c.proc.running() && !c.killed.Load() && c.proc.err != nil
	c.proc.kill()
	_ = c.in.Close()
	<-c.heard
	if failed {
		c.t.Errorf("redistest: child %q: %v", c.role, c.proc.err)
	}
}

// Send sends a line to the child.
func (c *ChildProcess) Send(format string, args ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.in, format+"\n", args...); err != nil {
		c.t.Errorf("redistest: child %q does not listen: %v", c.role, err)
	}
}

// Go lets one goroutine of the child that pauses at point, or comes there next,
// go on.
func (c *ChildProcess) Go(point string) {
	c.t.Helper()
	c.Send("go:%s", point)
}

// patience is how long a test waits for a child, generous because a loaded
// machine must not fail a test.
const patience = 30 * time.Second

// Expect waits for a line that starts with prefix and returns the rest of it.
// Lines before it stay to be taken by another call.
func (c *ChildProcess) Expect(prefix string) string {
	c.t.Helper()
	line, err := c.lines.take(func(line string) bool { return strings.HasPrefix(line, prefix) }, patience)
	if err != nil {
		c.t.Fatalf("redistest: child %q did not say %q: %v; it said %q", c.role, prefix, err, c.lines.rest())
	}
	return strings.TrimPrefix(line, prefix)
}

// Next returns the child's next line; ok is false when it has ended and
// everything it said has been taken.
func (c *ChildProcess) Next() (line string, ok bool) {
	c.t.Helper()
	line, err := c.lines.take(func(string) bool { return true }, patience)
	if err != nil && !errors.Is(err, io.EOF) {
		c.t.Fatalf("redistest: child %q says nothing: %v", c.role, err)
	}
	return line, err == nil
}

// Stop freezes the child, with all its goroutines, until Cont.
func (c *ChildProcess) Stop() { c.report("Stop", c.proc.stop()) }

// Cont lets a frozen child go on.
func (c *ChildProcess) Cont() { c.report("Cont", c.proc.cont()) }

func (c *ChildProcess) report(op string, err error) {
	if err != nil {
		c.t.Errorf("redistest: %s of child %q: %v", op, c.role, err)
	}
}

// Kill ends the child at once, without a chance to tidy up, and returns when it
// is gone.
func (c *ChildProcess) Kill() {
	if c.proc.running() {
		c.killed.Store(true)
	}
	c.proc.kill()
}

// Wait waits for the child to end by itself. The error says how it failed; a
// child whose race detector found something has failed.
func (c *ChildProcess) Wait() error {
	c.t.Helper()
	select {
	case <-c.proc.ended:
		<-c.heard
		return c.proc.err
	case <-time.After(patience):
		c.t.Fatalf("redistest: child %q does not end", c.role)
		return nil
	}
}

// Package dbtest runs the database servers that tests of change feeds need: one for the
// tests of a package, in a temporary directory, on a free port of 127.0.0.1, with its log
// set up for a feed. A test may kill it and start it again.
package dbtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/levee-go/levee/internal/redistest"
)

// ErrAbsent says that the server's programs are not on this machine. A test skips then,
// and only then, see [Absent].
var ErrAbsent = errors.New("not installed, see .ci/install-databases")

// A Server is a database server of the tests' own.
type Server struct {
	Port int
	Dir  string

	kind  kind
	owner *owner // nil: this process's own
	kill  func() // nil while it does not run
	pid   int
	log   *buffer
}

// A kind is what differs between databases.
type kind struct {
	name string
	programs
	// initial makes the data directory.
	initial func(p programs, dir string) *exec.Cmd
	serve   func(p programs, s *Server, args []string) *exec.Cmd
	answers func(p programs, s *Server) *exec.Cmd // succeeds when the server does
}

// programs are the paths of programs by their names.
type programs map[string]string

// Main is to be called by TestMain, and does not return. It runs the tests, stops the server
// that they share, and fails if goroutines are left at the end.
func Main(m *testing.M, servers ...*Shared) {
	code := m.Run()
	for _, shared := range servers {
		if shared.server == nil {
			continue
		}
		shared.server.Kill()
		_ = os.RemoveAll(shared.server.Dir)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Shared is a server that the tests of a package share: the first that asks starts it.
type Shared struct {
	Start func() (*Server, error)

	once   sync.Once
	server *Server
	err    error
	mu     sync.Mutex // held while Get looks whether the server runs
}

// Available fails the test if a server could not be started, and skips it if the server is not installed.
func Available(t testing.TB, err error) {
	t.Helper()
	switch {
	case errors.Is(err, ErrAbsent):
		Absent(t, err)
	case err != nil:
		t.Fatal(err)
	}
}

// Absent skips a test because a program that it needs is not installed. Where the environment variable LEVEE_CI
// is set, all of them have to be installed, and the test fails.
func Absent(t testing.TB, why any) {
	t.Helper()
	if os.Getenv("LEVEE_CI") != "" {
		t.Fatalf("%v (LEVEE_CI is set, so this test is not skipped)", why)
	}
	t.Skip(why)
}

// Get returns the server, which runs. It skips the test if the database is not installed.
func (s *Shared) Get(t testing.TB) *Server {
	t.Helper()
	s.once.Do(func() { s.server, s.err = s.Start() })
	Available(t, s.err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server.kill == nil {
		s.server.Restart(t)
	}
	return s.server
}

// start makes a server of a kind.
func start(k kind) (*Server, error) {
	s := &Server{kind: k, Port: redistest.FreePort(), log: &buffer{}}
	var err error
	if s.Dir, err = os.MkdirTemp("", "levee-"+k.name+"-"); err != nil {
		return nil, err
	}
	if s.owner, err = giveAway(s.Dir); err != nil {
		return nil, err
	}
	initial := k.initial(k.programs, filepath.Join(s.Dir, "data"))
	if out, err := s.as(initial).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", k.name, err, out)
	}
	return s, s.run()
}

func (s *Server) run(args ...string) error {
	cmd := s.as(s.kind.serve(s.kind.programs, s, args))
	cmd.Stdout, cmd.Stderr = s.log, s.log
	kill, err := redistest.StartProcess(cmd)
	if err != nil {
		return err
	}
	s.kill, s.pid = kill, cmd.Process.Pid
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if s.kind.answers(s.kind.programs, s).Run() == nil {
			return nil
		}
		if time.Now().After(end) {
			s.Kill()
			return fmt.Errorf("%s does not answer:\n%s", s.kind.name, s.log)
		}
	}
}

// Kill ends the server as a crash would.
func (s *Server) Kill() {
	if s.kill != nil {
		s.kill()
		s.kill = nil
	}
}

// Restart kills the server and starts it again, with further arguments for this run; it
// returns when it answers.
func (s *Server) Restart(t testing.TB, args ...string) {
	t.Helper()
	s.Kill()
	if err := s.run(args...); err != nil {
		t.Fatal(err)
	}
}

// Log is what the server has said.
func (s *Server) Log() string { return s.log.String() }

// CPU is how much processor time the server has taken since it was started, all its processes
// together; 0 where the system has no /proc.
func (s *Server) CPU() time.Duration {
	ticks := processTicks(s.pid, 4) // with the children that have ended
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if fields := processStat(pid); len(fields) > 1 && fields[1] == strconv.Itoa(s.pid) {
			ticks += processTicks(pid, 2)
		}
	}
	return time.Duration(ticks) * time.Second / 100
}

// processTicks adds up n of utime, stime, cutime and cstime.
func processTicks(pid, n int) (ticks int64) {
	fields := processStat(pid)
	if len(fields) < 15 {
		return 0
	}
	for _, field := range fields[11 : 11+n] {
		t, _ := strconv.ParseInt(field, 10, 64)
		ticks += t
	}
	return ticks
}

// processStat is /proc/pid/stat after the program's name, from the state on.
func processStat(pid int) []string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
}

// find looks for programs in the PATH and in further directories.
func find(database string, names []string, dirs ...string) (programs, error) {
	found := programs{}
	for _, name := range names {
		path, err := exec.LookPath(name)
		for i := 0; err != nil && i < len(dirs); i++ {
			path, err = exec.LookPath(filepath.Join(dirs[i], name))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: there is no %s: %w", database, name, ErrAbsent)
		}
		found[name] = path
	}
	return found, nil
}

// A buffer may be written to while it is read.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

var _ io.Writer = (*buffer)(nil)

func (b *buffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(data)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A Server is a real redis-server on 127.0.0.1. Its methods may be called
// concurrently; those that fail report an error to the test that started it.
type Server struct {
	t       testing.TB
	bin     string
	args    []string
	port    int
	dir     string
	control *redis.Client // for INFO: one connection of our own

	mu   sync.Mutex
	proc *process // guarded by mu
}

// Start runs a redis-server on a free port, in a temporary directory, that keeps
// nothing on disk. It returns when the server answers, about 20 ms later. args
// are further settings as on redis-server's command line, such as
// "--maxmemory", "1mb"; they override ours, so "--appendonly", "yes" makes the
// data survive a Restart. Without a redis-server on this machine the test is skipped,
// or fails where LEVEE_REDIS_SERVER says that there is one.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	Need(t)
	s, err := startServer(t, func(int, string) []string { return args })
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	return s
}

// Need skips the test if Start would. It is for a subtest that uses a server of the test around it.
func Need(t testing.TB) {
	t.Helper()
	if os.Getenv("LEVEE_REDIS_SERVER") != "" {
		return
	}
	if _, err := findServer(); errors.Is(err, exec.ErrNotFound) {
		t.Skipf("redistest: %v", err)
	}
}

// findServer returns the path of the server's binary.
func findServer() (string, error) {
	bin := os.Getenv("LEVEE_REDIS_SERVER")
	if bin == "" {
		bin = "redis-server"
	}
	bin, err := exec.LookPath(bin)
	if err != nil {
		return "", fmt.Errorf("these tests need a redis-server, run \"make redis\" to install one: %w", err)
	}
	return bin, nil
}

// startServer starts a server whose arguments may depend on its port and
// directory. The first may be the name of a configuration file.
func startServer(t testing.TB, args func(port int, dir string) []string) (*Server, error) {
	bin, err := findServer()
	if err != nil {
		return nil, err
	}
	for range 5 { // somebody may take the port between our look and the server's start
		port, dir := FreePort(), t.TempDir()
		s := &Server{t: t, bin: bin, port: port, dir: dir, args: args(port, dir)}
		if err = s.run(); err == nil {
			t.Cleanup(s.Kill)
			s.control = s.Client(t, func(o *redis.Options) { o.PoolSize, o.DialerRetries = 1, 1 })
			return s, nil
		}
	}
	return nil, err
}

// FreePort picks a port that no other call, of this process or of another, picks before
// this process ends: a server that was killed finds it free. The same holds for the port
// 10000 above, a cluster node's bus. All lie below those that systems hand out to
// outgoing connections, or a client that dials while a server is down could be given the
// very port the server wants back.
func FreePort() int {
	for {
		port := 10240 + rand.IntN(5500)
		if reserve(port) && available(port) && available(port+10000) {
			return port
		}
	}
}

// reserve listens on a third port, which stands for the other two, until the process ends.
func reserve(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+15500)))
	if err != nil {
		return false
	}
	reserved.Store(port, l)
	return true
}

// reserved keeps the listeners from being collected, which would close them.
var reserved sync.Map

func available(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// run starts the process and waits until it answers.
func (s *Server) run() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.bin, s.commandLine()...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	if s.proc, err = startProcess(cmd); err != nil {
		return err
	}
	if poll(15*time.Second, func() bool { return s.answers() || !s.proc.running() }) && s.proc.running() {
		return nil
	}
	s.proc.kill()
	said, _ := os.ReadFile(log.Name())
	return fmt.Errorf("%s does not start (%v):\n%s", strings.Join(cmd.Args, " "), s.proc.err, said)
}

func (s *Server) commandLine() []string {
	var file []string
	args := s.args
	if len(args) > 0 && !strings.HasPrefix(args[0], "--") {
		file, args = args[:1], args[1:] // it has to come first
	}
	return slices.Concat(file, []string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no",
	}, args)
}

// answers tells whether the server executes commands. Refusing one, because it
// wants a password for instance, is an answer; still loading its data is not.
func (s *Server) answers() bool {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_, _ = conn.Write([]byte("INFO server\r\n"))
	for scan := bufio.NewScanner(conn); scan.Scan(); {
		switch line := scan.Text(); {
		case strings.HasPrefix(line, "-"): // it answers, if not to everybody
			return !strings.HasPrefix(line, "-LOADING")
		case strings.HasPrefix(line, "process_id:"):
			return line == fmt.Sprint("process_id:", s.proc.cmd.Process.Pid) // else another test's server on this port
		}
	}
	return false
}

// Addr returns the server's address, "127.0.0.1:port". It never changes.
func (s *Server) Addr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// Client returns a client with go-redis' own defaults, but for the connection
// handshake, which sends nothing beyond HELLO: so the counts of Calls are those of
// the test's own commands. It is closed when t ends. changes may set any option.
func (s *Server) Client(t testing.TB, changes ...func(*redis.Options)) *redis.Client {
	c := redis.NewClient(options(s.Addr(), changes))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func options(addr string, changes []func(*redis.Options)) *redis.Options {
	o := &redis.Options{
		Addr:                     addr,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, change := range changes {
		change(o)
	}
	return o
}

// Stop freezes the server: its connections stay open, it accepts new ones, and
// answers nothing until Cont.
func (s *Server) Stop() { s.report("Stop", s.current().stop()) }

// Cont lets a frozen server go on, with whatever it was sent meanwhile.
func (s *Server) Cont() { s.report("Cont", s.current().cont()) }

// Kill ends the server at once, as a crash does; its port refuses connections
// until Restart.
func (s *Server) Kill() { s.current().kill() }

// Shutdown asks the server to end and waits until it has.
func (s *Server) Shutdown() {
	p := s.current()
	s.report("Shutdown", p.signal(syscall.SIGTERM))
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		s.t.Errorf("redistest: %s does not shut down", s.Addr())
	}
}

// Restart starts the server anew on the same port, after a Kill if it still
// runs, and waits until it answers. It comes back empty, without scripts or
// subscriptions.
func (s *Server) Restart() {
	s.Kill()
	s.report("Restart", s.run())
}

func (s *Server) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// report uses Errorf, not Fatalf: a test may break servers from any goroutine.
func (s *Server) report(op string, err error) {
	if err != nil {
		s.t.Errorf("redistest: %s of %s: %v", op, s.Addr(), err)
	}
}

// Stat returns a number from INFO, such as "total_connections_received" or
// "connected_clients". Our own connection is among them.
func (s *Server) Stat(name string) int64 {
	n, err := strconv.ParseInt(s.info("default")[name], 10, 64)
	if err != nil {
		s.t.Errorf("redistest: INFO of %s has no number %q", s.Addr(), name)
	}
	return n
}

// Calls returns how often a command has been executed since the server started,
// in scripts too. A subcommand is written as INFO does: "client|list".
func (s *Server) Calls(command string) int64 {
	line := s.info("commandstats")["cmdstat_"+strings.ToLower(command)] // calls=5,usec=70,…
	count, _, _ := strings.Cut(strings.TrimPrefix(line, "calls="), ",")
	n, _ := strconv.ParseInt(count, 10, 64)
	return n
}

// info returns the lines of one section of INFO by name.
func (s *Server) info(section string) map[string]string {
	text, err := s.control.Info(context.Background(), section).Result()
	s.report("INFO", err)
	lines := make(map[string]string)
	for scan := bufio.NewScanner(strings.NewReader(text)); scan.Scan(); {
		if name, value, ok := strings.Cut(scan.Text(), ":"); ok {
			lines[name] = value
		}
	}
	return lines
}

package servers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
)

// A Fragile is a Redis of the program's own, which it can hang and lose. Its methods are for one goroutine.
type Fragile struct {
	*Redis
	fragile
}

type fragile interface {
	Hang() error   // it keeps its connections, takes new ones, and answers nothing
	Resume() error // after Hang: it goes on, with what it was sent meanwhile
	Lose() error   // it ends as in a crash, with all it held
	Return() error // after Lose: it is back at the same address, empty
}

// OpenFragile starts the redis-server that binary names, a path or a name in PATH, on a free port of the loopback address; or one embedded
// in this program if that is empty.
func OpenFragile(ctx context.Context, binary string) (*Fragile, error) {
	if binary == "" {
		m, err := startMini()
		if err != nil {
			return nil, err
		}
		f := &embedded{mini: m}
		return &Fragile{&Redis{Address: m.Addr(), Name: "embedded Redis", stop: f.close}, f}, nil
	}
	path, err := exec.LookPath(binary)
	if err != nil {
		return nil, fmt.Errorf("no redis-server: %w", err)
	}
	r := &realServer{path: path}
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	return &Fragile{&Redis{Address: r.address(), Name: "a redis-server of its own", stop: r.close}, r}, nil
}

// Close ends the server, in whatever state it is.
func (f *Fragile) Close() error {
	f.stop()
	return nil
}

// embedded is a miniredis.
type embedded struct {
	*mini
	hung chan struct{} // nil unless it hangs; closed by Resume
}

func (e *embedded) Hang() error {
	hung := make(chan struct{})
	e.hung = hung
	e.Server().SetPreHook(func(*server.Peer, string, ...string) bool {
		<-hung
		return false
	})
	return nil
}

func (e *embedded) Resume() error {
	e.Server().SetPreHook(nil)
	close(e.hung)
	e.hung = nil
	return nil
}

func (e *embedded) Lose() error {
	e.Miniredis.Close()
	e.FlushAll()
	return nil
}

func (e *embedded) Return() error { return e.Restart() }

func (e *embedded) close() {
	if e.hung != nil {
		_ = e.Resume() // else its connections would not end
	}
	e.mini.stop()
}

// realServer is a process of its own.
type realServer struct {
	path  string
	port  int
	dir   string
	cmd   *exec.Cmd
	ended chan struct{} // closed when cmd has ended
	free  func()        // sends the guard home
}

func (r *realServer) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

func (r *realServer) open(ctx context.Context) (err error) {
	if r.port, err = freePort(); err != nil {
		return err
	}
	if r.dir, err = os.MkdirTemp("", "levee-redis-"); err != nil {
		return err
	}
	if err := r.start(ctx); err != nil {
		return errors.Join(err, os.RemoveAll(r.dir))
	}
	return nil
}

// freePort picks one below those that the system hands out to outgoing connections: it has
// to be free still when the server comes back.
func freePort() (int, error) {
	for tries := 100; ; tries-- {
		port := 10240 + rand.IntN(20_000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
		if tries == 0 {
			return 0, fmt.Errorf("looking for a free port: %w", err)
		}
	}
}

// start starts the process and waits until it answers.
func (r *realServer) start(ctx context.Context) error {
	var said strings.Builder
	r.cmd = exec.Command(r.path, "--port", strconv.Itoa(r.port), "--bind", "127.0.0.1", "--dir", r.dir,
		"--save", "", "--appendonly", "no", "--loglevel", "warning")
	r.cmd.Stdout, r.cmd.Stderr = &said, &said
	ownGroup(r.cmd) // Ctrl-C is for the program, which ends the server itself
	if err := r.cmd.Start(); err != nil {
		return fmt.Errorf("starting a redis-server: %w", err)
	}
	cmd, ended := r.cmd, make(chan struct{})
	r.ended, r.free = ended, guard(r.cmd.Process.Pid)
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	rdb := redis.NewClient(&redis.Options{Addr: r.address(), MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	for end := time.Now().Add(10 * time.Second); ; {
		if rdb.Ping(ctx).Err() == nil {
			return nil
		}
		select {
		case <-ended:
			r.free()
			return fmt.Errorf("%s does not run: %s", r.path, said.String())
		case <-ctx.Done():
			return errors.Join(ctx.Err(), r.Lose())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(end) {
			return errors.Join(fmt.Errorf("%s does not answer", r.path), r.Lose())
		}
	}
}

func (r *realServer) Hang() error   { return freeze(r.cmd.Process) }
func (r *realServer) Resume() error { return thaw(r.cmd.Process) }

func (r *realServer) Lose() error {
	err := r.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-r.ended
	r.free()
	return err
}

func (r *realServer) Return() error { return r.start(context.Background()) }

func (r *realServer) close() {
	_ = r.Lose() // which ends it hung or not
	_ = os.RemoveAll(r.dir)
}

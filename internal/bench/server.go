package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server is a redis-server on a free port of 127.0.0.1 that keeps nothing on disk.
type server struct {
	cmd  *exec.Cmd
	addr string
}

func startServer() (*server, error) {
	var err error
	for range 5 { // somebody may take the port between our look and the server's start
		var s *server
		if s, err = tryServer(); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func tryServer() (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().(*net.TCPAddr)
	_ = l.Close()
	cmd := exec.Command(cmp.Or(os.Getenv("LEVEE_REDIS_SERVER"), "redis-server"),
		"--port", strconv.Itoa(addr.Port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no",
		"--maxclients", "15000") // work_publish.go needs 10,000; a Redis that may not open as many files takes fewer
	cmd.Dir = os.TempDir()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{cmd, addr.String()}
	for range 1000 {
		if conn, err := net.Dial("tcp", s.addr); err == nil {
			_ = conn.Close()
			if pid, err := askServer(statsClient(s.addr), "process_id"); err == nil && int(pid) == cmd.Process.Pid {
				return s, nil
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.stop()
	return nil, fmt.Errorf("redis-server at %s does not answer", s.addr)
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGKILL)
	_ = s.cmd.Wait()
}

// statsClient returns a client with one connection, to ask a server what it has counted.
func statsClient(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1, DisableIdentity: true, Protocol: 2})
}

// askServer returns one of the numbers of INFO.
func askServer(rdb *redis.Client, name string) (float64, error) {
	numbers, err := serverNumbers(rdb)
	if err != nil {
		return 0, err
	}
	n, ok := numbers[name]
	if !ok {
		return 0, fmt.Errorf("INFO does not tell %s", name)
	}
	return n, nil
}

// serverNumbers returns the numbers of INFO.
func serverNumbers(rdb *redis.Client) (map[string]float64, error) {
	text, err := rdb.Info(context.Background(), "server", "clients", "stats", "memory", "cpu").Result()
	if err != nil {
		return nil, err
	}
	numbers := map[string]float64{}
	for scan := bufio.NewScanner(strings.NewReader(text)); scan.Scan(); {
		name, value, _ := strings.Cut(scan.Text(), ":")
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			numbers[name] = n
		}
	}
	return numbers, nil
}

// trips returns how often Redis has read from a client, this question not counted: once for a command, or for a pipeline, that
// comes alone. That is what counts as a round trip here, for all contenders alike.
func (p *process) trips() (float64, error) {
	n, err := askServer(p.stats, "total_reads_processed")
	p.asked++
	return n - p.asked, err
}

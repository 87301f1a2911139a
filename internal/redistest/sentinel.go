package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// SentinelServers is a master with one replica, watched by three sentinels that
// make the replica the master when theirs does not answer for a second.
type SentinelServers struct {
	t         testing.TB
	Data      []*Server // the first master and the first replica
	Sentinels []*Server
}

// masterName is what the sentinels call the master.
const masterName = "levee"

// Sentinel starts the five servers and returns when the replica follows and the
// sentinels know of it and of each other, a few seconds later.
func Sentinel(t testing.TB) *SentinelServers {
	t.Helper()
	master := Start(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := net.SplitHostPort(master.Addr())
	replica := Start(t, "--repl-diskless-sync-delay", "0", "--replicaof", host+" "+port)
	s := &SentinelServers{t: t, Data: []*Server{master, replica}}
	// A sentinel asks for replicas only now and then: let it find this one at once.
	Eventually(t, 30*time.Second, "the replica follows", func() bool {
		return replica.info("replication")["master_link_status"] == "up"
	})
	for range 3 {
		sentinel, err := startServer(t, func(_ int, dir string) []string {
			return []string{sentinelConfig(t, dir, host, port), "--sentinel"}
		})
		if err != nil {
			t.Fatalf("redistest: sentinel: %v", err)
		}
		s.Sentinels = append(s.Sentinels, sentinel)
	}
	Eventually(t, 30*time.Second, "the sentinels know each other", s.ready)
	return s
}

// sentinelConfig writes what a sentinel takes from a file only, and writes its
// own findings to later.
func sentinelConfig(t testing.TB, dir, host, port string) string {
	file := filepath.Join(dir, "sentinel.conf")
	// A sentinel pings once a second, and dials no more often. With a second until a server is
	// down, one late reply on a busy machine is a failover that no test has asked for.
	text := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s 2\n"+
		"sentinel down-after-milliseconds %[1]s 2000\n"+
		"sentinel failover-timeout %[1]s 5000\n", masterName, host, port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatalf("redistest: sentinel: %v", err)
	}
	return file
}

func (s *SentinelServers) ready() bool {
	for _, sentinel := range s.Sentinels {
		view := s.ask(sentinel)
		if view["flags"] != "master" || view["num-slaves"] != "1" || view["num-other-sentinels"] != "2" {
			return false
		}
	}
	return true
}

// ask returns what a sentinel knows of the master.
func (s *SentinelServers) ask(sentinel *Server) map[string]string {
	c := redis.NewSentinelClient(options(sentinel.Addr(), nil))
	defer c.Close()
	return c.Master(context.Background(), masterName).Val()
}

// Client returns a client that asks the sentinels for the master, otherwise like
// that of [Server.Client]. It is closed when t ends.
func (s *SentinelServers) Client(t testing.TB, changes ...func(*redis.FailoverOptions)) *redis.Client {
	o := &redis.FailoverOptions{
		MasterName:      masterName,
		DisableIdentity: true,
	}
	for _, sentinel := range s.Sentinels {
		o.SentinelAddrs = append(o.SentinelAddrs, sentinel.Addr())
	}
	for _, change := range changes {
		change(o)
	}
	c := redis.NewFailoverClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Master returns the server that most sentinels hold to be the master now.
func (s *SentinelServers) Master() *Server {
	votes := make(map[string]int)
	for _, sentinel := range s.Sentinels {
		view := s.ask(sentinel)
		votes[net.JoinHostPort(view["ip"], view["port"])]++
	}
	for _, server := range s.Data {
		if votes[server.Addr()] > len(s.Sentinels)/2 {
			return server
		}
	}
	s.t.Errorf("redistest: the sentinels do not agree: %v", votes)
	return s.Data[0]
}

// KillMaster kills the present master and returns it at once; the failover takes
// a second or two from there. After a Restart it comes back as the replica.
func (s *SentinelServers) KillMaster() *Server {
	master := s.Master()
	master.Kill()
	return master
}

// Promoted waits until a server other than old is the master and says so itself.
func (s *SentinelServers) Promoted(old *Server) *Server {
	s.t.Helper()
	var now *Server
	Eventually(s.t, 30*time.Second, "another master", func() bool {
		now = s.Master()
		return now != old && strings.HasPrefix(now.info("replication")["role"], "master")
	})
	return now
}

package redisconn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
)

// A Checkup is what was found out about a Redis and the client's way to it.
type Checkup struct {
	// Broken is why it cannot be used, or not by this client. nil: it can.
	Broken error
	// Weak is what weakens a promise, an error for each reason.
	Weak error
}

// checkTime is how long a step of a Checkup may take. It is longer than go-redis goes on
// with what a replica refuses, so that the refusal is heard.
const checkTime = 3 * time.Second

// evicts is what is said of an eviction policy.
var evicts = map[Use]struct {
	policies []string // that may be used, by their beginnings
	advice   string
}{
	Reads: {[]string{"noeviction", "volatile-"}, "keys of others that must not be lost are evicted for the cache's; " +
		"everything of levee has a TTL, so use volatile-lru, or noeviction"},
	Scripts: {[]string{"noeviction"}, "locks and filters may be evicted; use noeviction, and another Redis for what may go"},
}

// Check asks each master whether levee can work with it: whether it answers, as a master
// of version 6.2 or later, and does not evict what must stay. A user who may not ask for
// INFO hears nothing of evictions. It returns by the end of ctx.
func Check(ctx context.Context, rdb redis.UniversalClient, use Use) (c Checkup) {
	_, isCluster := rdb.(clusterClient)
	err := eachMaster(ctx, rdb, func(ctx context.Context, node redis.UniversalClient) error {
		server, err := greeting(ctx, node)
		if err != nil {
			return err
		}
		return unfit(server, isCluster)
	})
	if err != nil {
		c.Broken = cause(ctx, rdb, err)
		return c
	}
	c.Weak = eachMaster(ctx, rdb, func(ctx context.Context, node redis.UniversalClient) error {
		memory, err := Info(ctx, node, "memory")
		if err != nil {
			return nil // it may not ask, or what comes next finds out why
		}
		return Evicting(memory, use)
	})
	return c
}

// Step runs a step of a check, and leaves it behind when it takes too long.
func Step[T any](ctx context.Context, op func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTime, fmt.Errorf("no answer within %v", checkTime))
	defer cancel()
	value, _, err := contain.Race(ctx, func() (T, error) { return op(ctx) })
	return value, err
}

// A clusterClient is a *redis.ClusterClient, also inside a user's type.
type clusterClient interface {
	ForEachMaster(ctx context.Context, fn func(ctx context.Context, client *redis.Client) error) error
}

// eachMaster calls ask for each master of a cluster, or for the only one. It returns the
// errors of all, each once.
func eachMaster(ctx context.Context, rdb redis.UniversalClient, ask func(context.Context, redis.UniversalClient) error) error {
	cluster, ok := rdb.(clusterClient)
	if !ok {
		return ask(ctx, rdb)
	}
	_, err := Step(ctx, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return ask(ctx, node) })
	})
	return err
}

// greeting is a server's answer to HELLO, which everybody may ask for. A server or a proxy that does not know
// the command works all the same: what it is, INFO tells, if it does.
func greeting(ctx context.Context, node redis.UniversalClient) (map[string]string, error) {
	hello, err := Step(ctx, func(ctx context.Context) (any, error) { return node.Do(ctx, "HELLO").Result() })
	if err == nil {
		return pairs(hello), nil
	}
	if !Answered(err) || !strings.HasPrefix(err.Error(), "ERR unknown command") {
		return nil, err
	}
	info, err := Info(ctx, node, "everything")
	if err != nil && !Answered(err) {
		return nil, err
	}
	return map[string]string{"version": info["redis_version"], "mode": info["redis_mode"], "role": info["role"]}, nil
}

// unfit says what is wrong with a server, by its answer to HELLO.
func unfit(hello map[string]string, isCluster bool) error {
	version := hello["version"]
	if before62(version) {
		return fmt.Errorf("the server has version %s, and 6.2 or later is needed", version)
	}
	if hello["mode"] == "cluster" && !isCluster {
		return errors.New("the server is a node of a cluster; use redis.NewClusterClient")
	}
	if role := hello["role"]; role == "replica" || role == "slave" {
		return errors.New("the server is a replica, which takes no writes (READONLY); use a client that goes to the master")
	}
	return nil
}

// before62 reports whether a version is older than 6.2. One that is no version is not.
func before62(version string) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (major < 6 || major == 6 && minor < 2)
}

// pairs reads a reply of names and values: a map, or a list with protocol 2.
func pairs(reply any) map[string]string {
	all := map[string]string{}
	switch reply := reply.(type) {
	case map[any]any:
		for name, value := range reply {
			all[fmt.Sprint(name)] = fmt.Sprint(value)
		}
	case []any:
		for pair := range slices.Chunk(reply, 2) {
			if len(pair) == 2 {
				all[fmt.Sprint(pair[0])] = fmt.Sprint(pair[1])
			}
		}
	}
	return all
}

// Info returns a section of INFO by the names of its lines, as a step of a check.
func Info(ctx context.Context, rdb redis.UniversalClient, section string) (map[string]string, error) {
	text, err := Step(ctx, func(ctx context.Context) (string, error) { return rdb.Info(ctx, section).Result() })
	lines := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		lines[name] = value
	}
	return lines, err
}

// Evicting says what is wrong with the eviction policy in the section "memory" of INFO. A
// server without a limit of its memory evicts nothing.
func Evicting(memory map[string]string, use Use) error {
	policy := memory["maxmemory_policy"]
	if policy == "" || memory["maxmemory"] == "0" {
		return nil
	}
	for _, fit := range evicts[use].policies {
		if strings.HasPrefix(policy, fit) {
			return nil
		}
	}
	return fmt.Errorf("the server has maxmemory-policy %s: %s", policy, evicts[use].advice)
}

// cause finds out by a connection of its own whether err comes of a port that nobody
// listens at. err may not say: go-redis dials so often that the time may be up before it
// gives out why it cannot.
func cause(ctx context.Context, rdb redis.UniversalClient, err error) error {
	addr, _, _ := strings.Cut(address(rdb), ",")
	if _, _, none := net.SplitHostPort(addr); none != nil || Answered(err) || ctx.Err() != nil {
		return err // none: a socket of Unix, or "FailoverClient"
	}
	said, unreachable := atTheDoor(ctx, func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", addr) })
	switch {
	case unreachable != nil:
		return unreachable
	case said != "":
		return errors.New(said)
	}
	return err
}

// atTheDoor returns the error that a server gives to a new connection before it closes it, as at maxclients:
// it is an answer to nobody's command, so that go-redis does not read it.
func atTheDoor(ctx context.Context, dial func(context.Context) (net.Conn, error)) (said string, unreachable error) {
	brief, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := dial(brief)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	line, _ := bufio.NewReader(conn).ReadString('\n')
	said, ok := strings.CutPrefix(strings.TrimSpace(line), "-")
	if !ok {
		return "", nil
	}
	return said, nil
}

// address returns where rdb connects to, as far as its options say.
func address(rdb redis.UniversalClient) (addr string) {
	_ = look(rdb, func(client redis.UniversalClient) error {
		switch client := client.(type) {
		case *redis.Client:
			addr = client.Options().Addr
		case *redis.ClusterClient:
			addr = strings.Join(client.Options().Addrs, ",")
		}
		return nil
	})
	return addr
}

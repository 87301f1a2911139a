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

// A Checkup is the result of checking a Redis and the client's connection to it.
type Checkup struct {
	// Broken says why this client cannot use the Redis. nil: it can.
	Broken error
	// Weak joins an error for each reason why a promise is weaker. nil: there is none.
	Weak error
}

// checkTime is how long a step of a check may take. It is longer than go-redis repeats a
// command that a replica refuses, so that the step returns the refusal.
const checkTime = 3 * time.Second

// evicts has, for each Use, the eviction policies that fit it and the advice for the others.
var evicts = map[Use]struct {
	policies []string // prefixes of the policies that fit
	advice   string
}{
	Reads: {[]string{"noeviction", "volatile-"}, "keys of others that must not be lost are evicted for the cache's; " +
		"everything of levee has a TTL, so use volatile-lru, or noeviction"},
	Scripts: {[]string{"noeviction"}, "locks and filters may be evicted; use noeviction, and another Redis for what may go"},
}

// Check checks for each master whether levee can work with it: whether it replies, as a master
// of version 6.2 or later, and does not evict keys that must stay. If the client's user may not
// run INFO, Check does not report evictions. It returns by the end of ctx.
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
			return nil // INFO is not allowed, or the next step finds the cause
		}
		return Evicting(memory, use)
	})
	return c
}

// Step runs op as a step of a check. After 3 s it returns an error and leaves op behind.
func Step[T any](ctx context.Context, op func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTime, fmt.Errorf("no answer within %v", checkTime))
	defer cancel()
	value, _, err := contain.Race(ctx, func() (T, error) { return op(ctx) })
	return value, err
}

// A clusterClient is a *redis.ClusterClient, or a user's type that embeds one.
type clusterClient interface {
	ForEachMaster(ctx context.Context, fn func(ctx context.Context, client *redis.Client) error) error
}

// eachMaster calls ask for each master of a cluster at once, or for the only master. It returns
// the first error.
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

// greeting returns a server's reply to HELLO, which every user may call. If the server or proxy does not know
// HELLO, greeting takes the same fields from INFO; they are empty if INFO is refused too.
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

// unfit returns why levee cannot work with a server that replies hello to HELLO, nil if it can.
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

// before62 reports whether a version is older than 6.2. It reports false for a text that is no version.
func before62(version string) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (major < 6 || major == 6 && minor < 2)
}

// pairs returns the names and values of a reply: a map, or with protocol 2 a list.
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

// Info returns the values of a section of INFO by the names of its lines, as a step of a check.
func Info(ctx context.Context, rdb redis.UniversalClient, section string) (map[string]string, error) {
	text, err := Step(ctx, func(ctx context.Context) (string, error) { return rdb.Info(ctx, section).Result() })
	lines := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		lines[name] = value
	}
	return lines, err
}

// Evicting returns an error if the eviction policy in memory, the section of INFO, does not fit
// use. A server without a memory limit evicts nothing.
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

// cause dials the server to find out why it cannot be used, and returns that error, or err if
// the dial says no more. err may not say that nothing listens at the port: go-redis dials so
// often that the time may be up before it returns the dial's error.
func cause(ctx context.Context, rdb redis.UniversalClient, err error) error {
	addr, _, _ := strings.Cut(address(rdb), ",")
	if _, _, none := net.SplitHostPort(addr); none != nil || Answered(err) || ctx.Err() != nil {
		return err // none: a Unix socket, or "FailoverClient"
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

// atTheDoor returns the error that a server sends on a new connection before it closes it, as at maxclients.
// go-redis does not read that error, because it is no reply to a command.
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

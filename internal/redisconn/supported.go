package redisconn

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/logonce"
)

// Clients
//
// Several types of go-redis implement redis.UniversalClient, and users wrap them in types
// of their own. Levee cannot keep its promises with all of them: some serve reads from a
// cache or a replica, where an invalidation that Redis has confirmed may be missing. So
// the packages pass each client to CheckClient, which also looks into types that embed a
// client.

// A Use says how a package uses Redis.
type Use int

const (
	// Scripts: only by scripts. go-redis sends them to a master, whatever its options,
	// and never serves them from a cache.
	Scripts Use = iota
	// Reads: by scripts and plain reads.
	Reads
)

// CheckClient returns an error if a package cannot work with rdb. The error names the
// option or type, and what to use in its place. CheckClient does not call Redis.
func CheckClient(rdb redis.UniversalClient, use Use) error {
	return look(rdb, func(client redis.UniversalClient) error { return supports(client, use) })
}

func supports(client redis.UniversalClient, use Use) error {
	switch client := client.(type) {
	case *redis.Client:
		if o := client.Options(); use == Reads && (o.ClientSideCacheConfig != nil || o.ClientSideCache != nil) {
			return errors.New("the option ClientSideCacheConfig of the redis client is not supported: go-redis would answer from its own cache " +
				"what has been invalidated; make another client without it, the local tier does its work")
		}
	case *redis.ClusterClient:
		if name := replicaOption(client.Options()); use == Reads && name != "" {
			return fmt.Errorf("the option %s of the redis client is not supported: reads would go to replicas, which may not have heard "+
				"of an invalidation yet; make another client without it", name)
		}
	case *redis.Ring:
		return errors.New("a *redis.Ring is not supported: it moves the keys of a server that fails to others, which know nothing of them; " +
			"use redis.NewClient, NewFailoverClient or NewClusterClient")
	case *redis.AutoPipeliner:
		return errors.New("a *redis.AutoPipeliner is not supported: it hides the options of its client, holds callers beyond their contexts " +
			"and adds a millisecond to a lone read; pass the client that it was made of, levee makes pipelines by itself")
	}
	return nil
}

// replicaOption returns the name of the option that makes go-redis read from replicas, "" if
// none is set. RouteByLatency, RouteRandomly and FailoverOptions.ReplicaOnly set ReadOnly too.
func replicaOption(o *redis.ClusterOptions) string {
	switch {
	case o.RouteByLatency:
		return "RouteByLatency"
	case o.RouteRandomly:
		return "RouteRandomly"
	case o.ReadOnly && o.ClusterSlots != nil:
		return "ReadOnly or ReplicaOnly"
	case o.ReadOnly:
		return "ReadOnly"
	}
	return ""
}

// look calls see with rdb or, if rdb has a user's type, with the clients that the type
// embeds. It returns the first error of see, or an error if a client is nil or was not made by
// a function of go-redis.
func look(rdb redis.UniversalClient, see func(redis.UniversalClient) error) (err error) {
	defer func() {
		if recover() != nil { // Options panics on a zero redis.Client
			err = fmt.Errorf("the redis client %T was not made by redis.NewClient, NewFailoverClient or NewClusterClient", rdb)
		}
	}()
	return lookInto(reflect.ValueOf(rdb), see)
}

func lookInto(v reflect.Value, see func(redis.UniversalClient) error) error {
	if !v.IsValid() {
		return errors.New("the redis client is nil")
	}
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("the redis client is a nil %s", v.Type())
	}
	if v.CanInterface() && fromGoRedis(v.Type()) {
		return see(v.Interface().(redis.UniversalClient))
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return nil
	}
	for i := range v.NumField() {
		if field := v.Field(i); v.Type().Field(i).Anonymous && field.Type().Implements(universal) {
			if field.Kind() == reflect.Interface {
				field = field.Elem()
			}
			if err := lookInto(field, see); err != nil {
				return err
			}
		}
	}
	return nil
}

var universal = reflect.TypeFor[redis.UniversalClient]()

// fromGoRedis reports whether t is a client type of go-redis.
func fromGoRedis(t reflect.Type) bool {
	return t.Implements(universal) && t.Kind() == reflect.Pointer && t.Elem().PkgPath() == reflect.TypeFor[redis.Client]().PkgPath()
}

// Advise logs, once for each client, which of its settings hurt. If it cannot see them, it
// logs that.
func Advise(rdb redis.UniversalClient, log *logonce.Log) {
	seen := false
	_ = look(rdb, func(client redis.UniversalClient) error {
		seen = true
		switch client := client.(type) {
		case *redis.Client:
			adviseOnce(client.Options(), log, hurting(client.Options()))
		case *redis.ClusterClient:
			adviseOnce(client.Options(), log, hurtingCluster(client.Options()))
		}
		return nil
	})
	if !seen {
		log.Warn("the options of the redis client cannot be seen; it must not cache reads nor send them to replicas", "type", fmt.Sprintf("%T", rdb))
	}
}

// advised has weak pointers to the options that were logged.
var advised sync.Map

func adviseOnce[O any](options *O, log *logonce.Log, hurts []string) {
	if len(hurts) == 0 {
		return
	}
	if _, again := advised.LoadOrStore(weak.Make(options), true); !again {
		log.Warn("settings of the redis client that hurt", "settings", strings.Join(hurts, "; "))
	}
}

// fewConns is the number of connections below which callers wait for each other.
const fewConns = 5

func hurting(o *redis.Options) (hurts []string) {
	if o.MaxActiveConns > 0 && o.MaxActiveConns < fewConns {
		hurts = append(hurts, fmt.Sprintf("MaxActiveConns %d: callers wait for each other's connections, and other commands of the client fail", o.MaxActiveConns))
	}
	if o.PoolSize < fewConns {
		hurts = append(hurts, fmt.Sprintf("PoolSize %d: callers wait for each other's connections", o.PoolSize))
	}
	return hurts
}

// hurtingCluster returns advice on options of a ClusterClient, in whose place levee cannot
// use a copy with other options.
func hurtingCluster(o *redis.ClusterOptions) (hurts []string) {
	if o.PoolSize < fewConns {
		hurts = append(hurts, fmt.Sprintf("PoolSize %d: callers wait for each other's connections", o.PoolSize))
	}
	if (o.ReadTimeout <= 0 || o.ReadTimeout > 3*time.Second) && !o.ContextTimeoutEnabled {
		hurts = append(hurts, fmt.Sprintf("ReadTimeout %v without ContextTimeoutEnabled: a node that hangs keeps connections for that long", o.ReadTimeout))
	}
	return hurts
}

// Refused reports whether err is a reply by which Redis refuses a client that cannot work as
// it is: its user or password is wrong or lacks rights, its database does not exist, it has
// reached a replica or a lone node of a cluster, or the server or a proxy lacks a command that
// levee needs, such as EVAL. Only an operator can fix that. A master that was just replaced
// replies like a replica for a moment.
func Refused(err error) bool {
	if err == nil {
		return false
	}
	if redis.IsAuthError(err) || redis.IsPermissionError(err) || redis.IsReadOnlyError(err) {
		return true
	}
	for _, text := range refusals {
		if redis.HasErrorPrefix(err, text) {
			return true
		}
	}
	var answer redis.Error
	return errors.As(err, &answer) && slices.ContainsFunc(withoutCommand, func(part string) bool {
		return strings.Contains(strings.ToLower(answer.Error()), part)
	})
}

// refusals has the beginnings of refusals for which go-redis has no function.
var refusals = []string{
	"DB index is out of range",
	"MOVED",
	"The user executing the script can't", // 7.0: run this command, or access a key
	"ACL failure in script",               // 7.2 and later, Valkey
}

// withoutCommand has parts, in lower case, of the errors of servers and proxies that lack a command.
var withoutCommand = []string{
	"unknown command",       // Redis, Valkey and most proxies: disabled by rename-command, or by a managed service
	"unknown redis command", // the same for a command in a script
	"not support",           // "ERR command eval not support for your account" of a managed service
	"unsupported command",   // proxies
}

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
// Several types of go-redis pass as a redis.UniversalClient, and users wrap them in types
// of their own. Levee cannot keep its promises over all of them: some have a read
// answered by a cache or by a replica, where an invalidation that Redis has confirmed may
// be missing. So the packages have CheckClient look at each client that they are given,
// through the types that embed it.

// A Use says how a package asks Redis.
type Use int

const (
	// Scripts: by scripts alone. Go-redis sends them to a master, whatever its options,
	// and never answers them from a cache.
	Scripts Use = iota
	// Reads: by plain reads too.
	Reads
)

// CheckClient returns why a package cannot work with rdb, nil if it can. The error names
// the option or type, and what to use in its place. It does not ask Redis.
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

// replicaOption names the option by which go-redis reads from replicas. Each of the
// others sets ReadOnly too, as FailoverOptions.ReplicaOnly does.
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

// look calls see with rdb or, if that is of a user's type, with the clients that the type
// embeds. It returns see's first error, or one of a client that was not made by go-redis'
// functions.
func look(rdb redis.UniversalClient, see func(redis.UniversalClient) error) (err error) {
	defer func() {
		if recover() != nil { // the zero redis.Client panics when it is asked for its options
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

// fromGoRedis reports whether t is one of go-redis' clients.
func fromGoRedis(t reflect.Type) bool {
	return t.Implements(universal) && t.Kind() == reflect.Pointer && t.Elem().PkgPath() == reflect.TypeFor[redis.Client]().PkgPath()
}

// Advise logs once for each client which of its settings hurt, and if they cannot be
// seen.
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

// advised has the options that were logged, by weak pointers.
var advised sync.Map

func adviseOnce[O any](options *O, log *logonce.Log, hurts []string) {
	if len(hurts) == 0 {
		return
	}
	if _, again := advised.LoadOrStore(weak.Make(options), true); !again {
		log.Warn("settings of the redis client that hurt", "settings", strings.Join(hurts, "; "))
	}
}

// fewConns is how many connections are few: callers would wait for each other.
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

// hurtingCluster is about what a ClusterClient does for its operations, which cannot be
// given options of our own.
func hurtingCluster(o *redis.ClusterOptions) (hurts []string) {
	if o.PoolSize < fewConns {
		hurts = append(hurts, fmt.Sprintf("PoolSize %d: callers wait for each other's connections", o.PoolSize))
	}
	if (o.ReadTimeout <= 0 || o.ReadTimeout > 3*time.Second) && !o.ContextTimeoutEnabled {
		hurts = append(hurts, fmt.Sprintf("ReadTimeout %v without ContextTimeoutEnabled: a node that hangs keeps connections for that long", o.ReadTimeout))
	}
	return hurts
}

// Refused reports whether err is an answer by which Redis refuses a client that cannot
// work as it is: its user or password is wrong or lacks rights, its database does not
// exist, it has reached a replica or a lone node of a cluster, or the server or a proxy does
// not have a command that is needed, such as EVAL. Only an operator can mend that. A master
// that was just replaced answers like a replica for a moment.
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

// refusals are texts of servers for which go-redis has no function.
var refusals = []string{
	"DB index is out of range",
	"MOVED",
	"The user executing the script can't", // 7.0: run this command, or access a key
	"ACL failure in script",               // 7.2 and later, Valkey
}

// withoutCommand are parts, in lower case, of the texts of servers and proxies that do not have a command.
var withoutCommand = []string{
	"unknown command",       // Redis, Valkey and most proxies: disabled by rename-command, or by a managed service
	"unknown redis command", // the same, by a script
	"not support",           // "ERR command eval not support for your account" of a managed service
	"unsupported command",   // of proxies
}

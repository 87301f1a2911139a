// Package keys makes the names of all keys and channels that levee uses in Redis. No
// other package builds one.
//
//	levee:c1:{product:42}       the value of id 42 in the cache "product"
//	levee:c1:{product:42}:v3    the same with Schema 3
//	levee:c1:{product:42}:lock  its lease, one for all schemas
//	levee:c1:{product}:clears   the cache's Clears and ClearTags
//	levee:cache:1:product       the channel of that cache's messages
//	levee:hub:1:<process>       the channel of a process's heartbeat
//
// With a prefix, each of these but the heartbeat's begins with it and a colon. The c1 is the version of
// the layout, and the 1 in a channel's name is the version of the messages on it. Pub/sub ignores
// database numbers: caches with one name in two databases receive each other's messages, which costs
// them a needless miss and nothing else.
package keys

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// A Cache makes the names of one cache's keys and channel. Different caches, schemas and ids
// have different names, whatever bytes an id has, provided that CheckCache accepts the cache's
// name. All keys of one id are in one cluster slot: Redis Cluster hashes only the text
// between the braces, and a key has just one pair of them.
type Cache struct{ prefix, channel string }

// OfCache returns the names for the cache called name.
func OfCache(name string) Cache { return Cache{"levee:c1:{" + name, "levee:cache:1:" + name} }

// Under returns the same names with prefix and a colon in front; "" for none. CheckPrefix must accept
// the prefix.
func (c Cache) Under(prefix string) Cache {
	return Cache{Under(prefix, c.prefix), Under(prefix, c.channel)}
}

// Under returns the name of a key with prefix and a colon in front; "" for none.
func Under(prefix, name string) string {
	if prefix == "" {
		return name
	}
	return prefix + ":" + name
}

// CheckPrefix returns an error if no names can begin with prefix. 100 bytes leave room for what the lock of
// a feed puts after it.
func CheckPrefix(prefix string) error {
	if len(prefix) > 100 || strings.ContainsAny(prefix, "{}") || strings.ContainsFunc(prefix, unicode.IsControl) {
		return fmt.Errorf("Prefix must have at most 100 bytes, no braces and no control characters, got %.150q", prefix) //nolint:staticcheck // the name of a field
	}
	return nil
}

// Value names the value of id.
func (c Cache) Value(schema int, id string) string {
	if schema == 0 {
		return c.prefix + ":" + escape(id) + "}"
	}
	return c.prefix + ":" + escape(id) + "}:v" + strconv.Itoa(schema)
}

// Lease names the lease of id.
func (c Cache) Lease(id string) string { return c.prefix + ":" + escape(id) + "}:lock" }

// Clears names the hash of the cache's clears. It has no colon between the braces, where every id's key has one.
func (c Cache) Clears() string { return c.prefix + "}:clears" }

// Messages names the channel of the cache.
func (c Cache) Messages() string { return c.channel }

const field = "Name" // the field of Options with which an error about a name begins

// CheckCache returns an error if a cache cannot be called name.
func CheckCache(name string) error {
	if strings.ContainsAny(name, ":{}") {
		return fmt.Errorf("%s must hold none of \":{}\", got %.60q", field, name)
	}
	return CheckName(name)
}

// CheckName returns an error if name is blank or holds control characters.
func CheckName(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return fmt.Errorf("%s must not be blank", field)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("%s must hold no control characters, got %.60q", field, name)
	}
	return nil
}

// Heartbeat names the channel on which only the process itself publishes.
func Heartbeat(process string) string { return "levee:hub:1:" + process }

// escape replaces the braces of id, which would choose a cluster slot, and its
// percent signs, which makes the replacement reversible.
func escape(id string) string {
	if !strings.ContainsAny(id, "{}%") {
		return id
	}
	return escaper.Replace(id)
}

var escaper = strings.NewReplacer("{", "%7B", "}", "%7D", "%", "%25")

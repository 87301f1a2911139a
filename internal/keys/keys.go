// Package keys makes the names of everything levee keeps in Redis. No other
// package builds one.
//
//	product:42               the value of id 42 in the cache "product"
//	product:v3:42            the same with Schema 3
//	{product:42}:lock        its lease, in the same cluster slot
//	levee:cache:1:product    the channel of that cache's events
//	levee:hub:1:<process>    the channel of a process's heartbeat
//
// The 1 in a channel's name is the version of the messages on it. Pub/sub does
// not know database numbers: caches of one name in two databases hear each
// other, which costs them a needless miss and nothing else.
package keys

import (
	"strconv"
	"strings"
)

// Value names the value of id in the cache name. Different arguments give
// different names, whatever bytes id has, as long as name holds none of ":{}".
func Value(name string, schema int, id string) string {
	if schema == 0 && looksLikeSchema(id) {
		return name + ":%76" + escape(id[1:]) // the v, so that it is not taken for a schema
	}
	if schema == 0 {
		return name + ":" + escape(id)
	}
	return name + ":v" + strconv.Itoa(schema) + ":" + escape(id)
}

// IsPlain reports whether Value ends in id as it is, after what it has for "".
func IsPlain(schema int, id string) bool {
	return !strings.ContainsAny(id, "{}%") && (schema != 0 || !looksLikeSchema(id))
}

// Lease names the lease of a value. The braces make Redis Cluster look only at
// what is between them: the lease is in the slot of its value, because the
// value's name has no braces of its own.
func Lease(value string) string { return "{" + value + "}:lock" }

// Events names the channel of a cache's invalidations and wake-ups.
func Events(name string) string { return "levee:cache:1:" + name }

// Heartbeat names the channel on which a process hears only itself.
func Heartbeat(process string) string { return "levee:hub:1:" + process }

// escape replaces the braces, which would choose a cluster slot, and the
// percent sign, which makes the replacement reversible.
func escape(id string) string {
	if !strings.ContainsAny(id, "{}%") {
		return id
	}
	return escaper.Replace(id)
}

var escaper = strings.NewReplacer("{", "%7B", "}", "%7D", "%", "%25")

// looksLikeSchema reports whether id starts as "v3:" does.
func looksLikeSchema(id string) bool {
	if len(id) < 3 || id[0] != 'v' {
		return false
	}
	rest := strings.TrimLeft(id[1:], "0123456789")
	return len(rest) < len(id)-1 && strings.HasPrefix(rest, ":")
}

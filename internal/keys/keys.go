// Package keys makes the names of everything levee keeps in Redis. No other
// package builds one.
//
//	levee:c1:{product:42}       the value of id 42 in the cache "product"
//	levee:c1:{product:42}:v3    the same with Schema 3
//	levee:c1:{product:42}:lock  its lease, one for all schemas
//	levee:c1:{product}:clears   what was cleared of the cache, see Clear and ClearTags
//	levee:cache:1:product       the channel of that cache's messages
//	levee:hub:1:<process>       the channel of a process's heartbeat
//
// The c1 is the version of the layout, and the 1 in a channel's name that of the
// messages on it. Pub/sub does not know database numbers: caches of one name in two
// databases hear each other, which costs them a needless miss and nothing else.
package keys

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// A Cache makes the names of one cache. Different caches, schemas and ids have
// different ones, whatever bytes an id has, as long as the cache's name is one that
// CheckCache lets pass. All names of one id are in one cluster slot: Redis Cluster looks
// only at what is between the braces, and there are no others.
type Cache struct{ prefix, name string }

// OfCache is the names of the cache called name.
func OfCache(name string) Cache { return Cache{"levee:c1:{" + name, name} }

// Value names the value of id.
func (c Cache) Value(schema int, id string) string {
	if schema == 0 {
		return c.prefix + ":" + escape(id) + "}"
	}
	return c.prefix + ":" + escape(id) + "}:v" + strconv.Itoa(schema)
}

// Lease names the lease of id.
func (c Cache) Lease(id string) string { return c.prefix + ":" + escape(id) + "}:lock" }

// Clears names what was cleared. It has no colon between the braces, as every id has.
func (c Cache) Clears() string { return c.prefix + "}:clears" }

// Messages names the channel of the cache.
func (c Cache) Messages() string { return "levee:cache:1:" + c.name }

const field = "Name" // of the options, which an error about a name begins with

// CheckCache returns an error if name cannot be that of a cache.
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

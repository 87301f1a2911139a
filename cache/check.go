package cache

import "context"

// Check asks Redis whether the cache can work with it, for the start of a service and
// for its readiness: whether it answers, as a master of version 6.2 or later, accepts
// the client's password and database, lets it run every command of the cache and hear
// other processes' messages, has the replicas for Options.Rebuild.WaitReplicas, and has
// an eviction policy of the kind that suits a cache. It tries the commands on a key of
// its own, which it takes away again; of a cluster it tries them on one node. A user of
// Redis who may not use INFO hears nothing of evictions.
//
// The error names the cache and the cause. It matches ErrUnavailable if the cache has to
// do without Redis: Gets are answered from the source then. Any other error says what
// weakens a promise. Check takes some milliseconds; if Redis does not answer, some
// seconds, or until ctx ends. Without Redis it returns nil, after Close ErrClosed.
func (c *Cache[K, V]) Check(ctx context.Context) error {
	if c.closed() {
		return ErrClosed
	}
	return named(c.fleet.Check(ctx))
}

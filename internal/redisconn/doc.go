// Package redisconn talks to one Redis for cache, lock and bloom. It has what go-redis
// leaves to its user and all three packages need.
//
//   - [Conn] runs operations over the user's client, within a time limit that holds
//     whatever the client's own options are. Operations of many callers share pipelines:
//     see lane.go. See client.go for the one way to Redis that all operations take.
//   - [Outage] is a circuit breaker for each node of Redis: after a few operations without
//     a reply levee stops calling the node, except for one probe at a time, until the first
//     reply.
//   - [Conn.Eval] runs Lua scripts in one round trip per node, also after a server has
//     lost them, and [Conn.EvalAndWait] has replicas confirm them.
//   - [Link] is one pub/sub connection per client with a heartbeat, which reports
//     when messages may have been missed.
//
// Nothing here knows what the keys mean.
package redisconn

// Package redisconn talks to one Redis for cache, lock and bloom: everything that
// go-redis leaves to its user and that all three need stands here once.
//
//   - [Conn] runs operations over the user's client and within a time limit that holds
//     whatever the client's own options are. Those of many callers ride together: see
//     lane.go. See client.go for the one way that they all take.
//   - [Outage] is a circuit breaker for each node of Redis: after a few operations
//     without an answer nobody asks the node but one probe at a time, until the first
//     answer.
//   - [Conn.Eval] runs Lua scripts in one round trip per node, also after a server has
//     lost them, and [Conn.EvalAndWait] has replicas confirm them.
//   - [Link] is one pub/sub connection per client with a heartbeat, which reports
//     when messages may have been missed.
//
// Nothing here knows what the keys mean.
package redisconn

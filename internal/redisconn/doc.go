// Package redisconn talks to one Redis for cache, lock and bloom: everything that
// go-redis leaves to its user and that all three need stands here once.
//
//   - [Conn] runs operations within a time limit that holds whatever the client's
//     own options are, on the caller's goroutine where that is safe and on one that
//     the caller can leave behind where it is not.
//   - [Outage] is a circuit breaker for Redis: after a few reads without an answer
//     nobody asks Redis but one probe at a time, until the first answer.
//   - [Eval] runs Lua scripts in one round trip per node, also after a server has
//     lost them, and [EvalAndWait] has replicas confirm them.
//   - [Link] is one pub/sub connection per client with a heartbeat, which reports
//     when messages may have been missed.
//
// Nothing here knows what the keys mean.
package redisconn

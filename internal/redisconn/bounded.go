package redisconn

import "github.com/redis/go-redis/v9"

// Bounded returns the client to use in a Do: its operations end within the Conn's
// time even after their caller has left them behind, so that a Redis that hangs does
// not fill the Conn's limit. It is Client itself where no client can be made to.
func (c *Conn) Bounded() redis.UniversalClient {
	if c.onCaller != nil {
		return c.onCaller
	}
	return c.Client
}

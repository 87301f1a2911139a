package redisconn

import (
	"context"
	"hash/maphash"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Read reads up to longest bytes of key, and one more if the value is longer. It is not
// a GET: somebody else may have put hundreds of megabytes there, and go-redis makes room
// for all that a server announces. A value of another type reads as none. During an
// outage Read returns ErrOutage at once. It returns by the end of the Conn's time; before
// that when ctx ends. Where the read is alone, a cancellation that is no deadline may go
// unnoticed for 250 ms.
func (c *Conn) Read(ctx context.Context, key string, longest int) ([]byte, error) {
	cmd := new(getrange).of(ctx, key, c.boxed(longest))
	if err := c.lanes.of(key).do(ctx, []op{{key: key, cmd: cmd, read: true, long: c.long.has(key)}}, nil); err != nil {
		return nil, err
	}
	data, err := read(cmd)
	c.long.note(key, len(data))
	return data, err
}

// ReadMany is Read for many keys, in one trip to each node, or more if they are more than
// maxOps. Each key has its value or an error of its own.
func (c *Conn) ReadMany(ctx context.Context, keys []string, longest int) (values [][]byte, errs []error) {
	reads := make([]getrange, len(keys)) // one piece of memory
	ops := make([]op, len(keys))
	box := c.boxed(longest)
	for i, key := range keys {
		ops[i] = op{key: key, cmd: reads[i].of(ctx, key, box), read: true}
	}
	values, errs = make([][]byte, len(keys)), c.doMany(ctx, ops, nil)
	for i := range reads {
		if errs[i] == nil { // else its command must not be looked at any more
			values[i], errs[i] = read(&reads[i].cmd)
		}
	}
	return values, errs
}

// A getrange is a command and its arguments in one piece of memory.
type getrange struct {
	cmd  redis.StringCmd
	args [4]any
}

// of makes r the command for key.
func (r *getrange) of(ctx context.Context, key string, longest any) *redis.StringCmd {
	r.args = [4]any{"getrange", key, int64(0), longest}
	r.cmd = *redis.NewStringCmd(ctx, r.args[:]...)
	return &r.cmd
}

// boxed returns n as an argument of a command, without an allocation if n is what it was
// the last time.
func (c *Conn) boxed(n int) any {
	if last := c.longest.Load(); last != nil && (*last).(int64) == int64(n) {
		return *last
	}
	box := any(int64(n))
	c.longest.Store(&box)
	return box
}

// read is the answer to a GETRANGE.
func read(cmd *redis.StringCmd) ([]byte, error) {
	data, err := cmd.Bytes()
	if err != nil && redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, nil
	}
	return data, err
}

// Long reports whether the value of key was long when it was last read: those who want it
// at one moment should share a read. It calls key only if there may be such a key.
func (c *Conn) Long(key func() string) bool { return c.long.any.Load() && c.long.has(key()) }

// longKeys remembers, of some keys, that their values were long when they were last
// read. Which keys it has is a matter of chance: a key takes the place of another.
type longKeys struct {
	any    atomic.Bool // one has ever been noted
	hashes [256]atomic.Uint64
}

// longValue is from when on a value is long: reading it takes as long as reading a few
// hundred short ones.
const longValue = 64 << 10

var seed = maphash.MakeSeed()

func (k *longKeys) place(key string) (*atomic.Uint64, uint64) {
	hash := maphash.String(seed, key)
	return &k.hashes[hash%uint64(len(k.hashes))], hash
}

func (k *longKeys) has(key string) bool {
	place, hash := k.place(key)
	return place.Load() == hash
}

func (k *longKeys) note(key string, length int) {
	place, hash := k.place(key)
	switch {
	case length >= longValue:
		place.Store(hash)
		k.any.Store(true)
	case place.Load() == hash:
		place.Store(0)
	}
}

package redisconn

import (
	"context"
	"hash/maphash"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Read returns up to longest bytes of the value of key, and one more if the value is
// longer. It uses GETRANGE and not GET: another application may have stored hundreds of
// megabytes there, and go-redis allocates as much as the server announces. A key of
// another type reads as empty. Callers may share the bytes and must not change them. During an outage Read returns ErrOutage at once. It returns
// within the Conn's timeout, and earlier when ctx ends; a lone read may ignore a
// cancellation that is no deadline for up to 250 ms.
func (c *Conn) Read(ctx context.Context, key string, longest int) ([]byte, error) {
	ops := []op{{key: key, cmd: new(getrange).of(ctx, key, c.boxed(longest)), read: true, share: true, long: c.long.has(key)}}
	if err := c.lanes.of(key).do(ctx, ops, nil); err != nil {
		return nil, err
	}
	data, err := read(ops[0].cmd.(*redis.StringCmd))
	c.long.note(key, len(data))
	return data, err
}

// ReadMany reads many keys as Read does, in one trip to each node for every 256 of its keys. It
// returns a value or an error for each key.
func (c *Conn) ReadMany(ctx context.Context, keys []string, longest int) (values [][]byte, errs []error) {
	reads := make([]getrange, len(keys)) // one piece of memory
	ops := make([]op, len(keys))
	box := c.boxed(longest)
	for i, key := range keys {
		ops[i] = op{key: key, cmd: reads[i].of(ctx, key, box), read: true}
	}
	values, errs = make([][]byte, len(keys)), c.doMany(ctx, ops, nil)
	for i := range reads {
		if errs[i] == nil { // with an error the command must no longer be looked at
			values[i], errs[i] = read(&reads[i].cmd)
		}
	}
	return values, errs
}

// A getrange is a GETRANGE command and its arguments in one allocation.
type getrange struct {
	cmd  redis.StringCmd
	args [4]any
}

// of sets r to the command for key and returns it.
func (r *getrange) of(ctx context.Context, key string, longest any) *redis.StringCmd {
	r.args = [4]any{"getrange", key, int64(0), longest}
	r.cmd = *redis.NewStringCmd(ctx, r.args[:]...)
	return &r.cmd
}

// boxed returns n as an argument of a command. It does not allocate if n is the same as in
// the last call.
func (c *Conn) boxed(n int) any {
	if last := c.longest.Load(); last != nil && (*last).(int64) == int64(n) {
		return *last
	}
	box := any(int64(n))
	c.longest.Store(&box)
	return box
}

// read returns the value of a GETRANGE, nil for a key of another type.
func read(cmd *redis.StringCmd) ([]byte, error) {
	data, err := cmd.Bytes()
	if err != nil && redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, nil
	}
	return data, err
}

// longKeys remembers keys whose values were long when they were last read. It has 256
// places, chosen by hash: a key may push out another.
type longKeys struct{ hashes [256]atomic.Uint64 }

// longValue is the length in bytes from which a value is long: reading it takes as long as
// reading a few hundred short ones.
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
	case place.Load() == hash:
		place.Store(0)
	}
}

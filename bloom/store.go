package bloom

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
)

var (
	//go:embed scripts/common.lua
	commonLua string
	//go:embed scripts/record.lua
	recordLua string
	//go:embed scripts/add.lua
	addLua string
	//go:embed scripts/tail.lua
	tailLua string
	//go:embed scripts/read.lua
	readLua string
	//go:embed scripts/write.lua
	writeLua string
	//go:embed scripts/switch.lua
	switchLua string
	//go:embed scripts/damaged.lua
	damagedLua string
	//go:embed scripts/touch.lua
	touchLua string
	//go:embed scripts/lease.lua
	leaseLua string
	//go:embed scripts/release.lua
	releaseLua string
	//go:embed scripts/logstart.lua
	logStartLua string
	//go:embed scripts/invalidate.lua
	invalidateLua string
	//go:embed scripts/check.lua
	checkLua string

	recordScript   = redisconn.NewScript(commonLua, recordLua)
	addScript      = redisconn.NewScript(commonLua, addLua)
	tailScript     = redisconn.NewScript(commonLua, tailLua)
	readScript     = redisconn.NewScript(readLua)
	writeScript    = redisconn.NewScript(writeLua)
	switchScript   = redisconn.NewScript(commonLua, switchLua)
	damagedScript  = redisconn.NewScript(damagedLua)
	touchScript    = redisconn.NewScript(touchLua)
	leaseScript    = redisconn.NewScript(commonLua, leaseLua)
	releaseScript  = redisconn.NewScript(releaseLua)
	logStartScript = redisconn.NewScript(commonLua, logStartLua)

	invalidateScript = redisconn.NewScript(invalidateLua)
	checkScript      = redisconn.NewScript(checkLua)
)

// ErrUnavailable reports that Redis did not confirm an Add or a step of a Rebuild.
// Whether it took effect is unknown.
var ErrUnavailable = errors.New("bloom: redis unavailable")

var (
	errLost = errors.New("the filter is no longer in redis") // or another one of its name is
	errGap  = errors.New("the log does not go on where it was left")
)

const (
	// life is the TTL of a key in Redis. Each process extends it every touchEvery, so a
	// filter expires when no process has used it for that long.
	life       = 7 * 24 * time.Hour
	touchEvery = time.Hour
	// orphanLife is how long the pieces of a snapshot live before it is put in use: the
	// process that writes it may die.
	orphanLife = 10 * time.Minute
	// callTimeout is how long a call to Redis may take, whatever the options of the
	// user's client are.
	callTimeout = time.Second
)

// A store reads and writes a filter in Redis. Each method but ensure makes one call to
// Redis, and a call returns within callTimeout.
type store struct {
	conn    *redisconn.Conn
	logConn *redisconn.Conn // for reads of the log, which are frequent: few of them may hang at a time
	names   keys.Filter
	o       Options
	self    string // the message with which this process announces its changes
}

func newStore(rdb redis.UniversalClient, o Options, self string) *store {
	return &store{
		conn:    redisconn.New(rdb, callTimeout, 1024),
		logConn: redisconn.New(rdb, min(callTimeout, max(o.MaxLag, 250*time.Millisecond)), 4),
		names:   keys.BloomFilter(o.Name).Under(o.Prefix), o: o, self: self,
	}
}

// eval runs a script and returns its reply, which may be an error.
func (s *store) eval(ctx context.Context, script *redisconn.Script, keys []string, args ...any) redisconn.Reply {
	return evalOn(ctx, s.conn, script, keys, args...)
}

func evalOn(ctx context.Context, conn *redisconn.Conn, script *redisconn.Script, keys []string, args ...any) redisconn.Reply {
	reply, err := redisconn.Do(ctx, conn, conn.Timeout(), func(ctx context.Context) (redisconn.Reply, error) {
		reply := script.Run(ctx, conn.Client(), redisconn.Call{Keys: keys, Args: args})
		return reply, reply.Err()
	}, nil)
	return redisconn.ReplyOr(reply, err)
}

// A record is one filter in Redis. If Redis loses the filter, the next filter of that
// name has another record.
type record struct {
	header string
	key    key
}

// ensure returns the record of the filter in Redis and the newest entry of its log. It makes
// them if there are none: with an empty snapshot in use if the filter is complete, else
// without one.
func (s *store) ensure(ctx context.Context, complete bool) (*record, entryID, error) {
	proposal, err := newHeader(s.o)
	if err != nil {
		return nil, entryID{}, err
	}
	first := ""
	if complete {
		first = newShape(s.o.Capacity, s.o.FalsePositiveRate, newSeed()).encode()
	}
	corrupt := "" // a header that Redis is to replace, unless another process already has
	for {
		reply, err := s.eval(ctx, recordScript, []string{s.names.Record(), s.names.Log()},
			proposal.encode(), life.Milliseconds(), corrupt, first).List()
		if err != nil {
			return nil, entryID{}, err
		}
		stored, texts, err := parseReply(reply, 2, 2)
		if err != nil {
			return nil, entryID{}, err
		}
		last, err := decodeEntryID(texts[0])
		if err != nil {
			return nil, entryID{}, err
		}
		last.hash = texts[1]
		h, err := decodeHeader(stored)
		if errors.Is(err, errHeader) && corrupt != stored {
			corrupt = stored
			continue
		}
		if err != nil {
			return nil, entryID{}, err
		}
		k, err := h.accept(s.o)
		return &record{stored, k}, last, err
	}
}

// read reads a piece of a snapshot.
func (s *store) read(ctx context.Context, pieces string, i int) (string, error) {
	return s.eval(ctx, readScript, []string{s.names.Pieces(pieces)}, i).Text()
}

// write writes a piece of a snapshot that is not in use yet.
func (s *store) write(ctx context.Context, l *lease, pieces string, i int, bytes []byte) error {
	held, err := s.eval(ctx, writeScript, []string{l.name, s.names.Pieces(pieces)},
		l.token, i, bytes, orphanLife.Milliseconds(), leaseLife.Milliseconds()).Int()
	if err == nil && held == 0 {
		err = errLeaseLost
	}
	return err
}

// makeCurrent puts the snapshot next in use in place of the pieces old, and returns old. If
// other pieces are in use, it does nothing and returns those.
func (s *store) makeCurrent(ctx context.Context, rec *record, l *lease, next snapshot, old string, rebuilt bool) (inUse string, err error) {
	reply, err := s.eval(ctx, switchScript, []string{s.names.Record(), s.names.Log(), l.name, s.names.Pieces(next.pieces), s.names.Pieces(old)},
		rec.header, l.token, next.shape, next.pieces, next.at.String(), old, rebuilt, life.Milliseconds(),
		s.o.logRetention().Milliseconds(), s.names.Channel(), s.self, next.at.hash, l.invalid).List()
	if err != nil {
		return "", err
	}
	kind, texts, err := parseReply(reply, 0, 1)
	switch {
	case errors.Is(err, errLost):
		return "", errLeaseLost
	case err != nil:
		return "", err
	case kind == "gap":
		return "", errGap
	case kind == "stale" && len(texts) == 1:
		return texts[0], nil
	}
	return old, nil
}

// damaged notes that a snapshot could not be loaded, and reports whether it is in use.
func (s *store) damaged(ctx context.Context, rec *record, snap snapshot) (inUse bool, err error) {
	n, err := s.eval(ctx, damagedScript, []string{s.names.Record()}, rec.header, snap.shape, snap.pieces).Int()
	return n == 1, err
}

// invalidate gives the snapshot in use up, and makes a Rebuild that runs fail. It returns
// when, in microseconds. A lost above 0 says that Redis has lost the one of that time: it is repeated,
// unless another process has done so.
func (s *store) invalidate(ctx context.Context, rec *record, lost int64) (last int64, err error) {
	last, err = s.eval(ctx, invalidateScript, []string{s.names.Record(), s.names.Rebuild()},
		rec.header, rand.Text(), (2 * leaseRenew).Milliseconds(), s.names.Channel(), s.self, lost).Int()
	if err == nil && last == 0 {
		err = errLost
	}
	return last, err
}

// touch extends the TTL of the filter's keys.
func (s *store) touch(ctx context.Context, pieces string) error {
	return s.eval(ctx, touchScript, []string{s.names.Record(), s.names.Log(), s.names.Pieces(pieces)}, life.Milliseconds()).Err()
}

// parseReply splits a reply into its kind and least to most texts.
func parseReply(reply []any, least, most int) (kind string, texts []string, err error) {
	for _, part := range reply[:min(len(reply), most+1)] {
		text, ok := part.(string)
		if !ok {
			return "", nil, errReply(reply)
		}
		texts = append(texts, text)
	}
	if len(texts) > 0 && texts[0] == "lost" {
		return "", nil, errLost
	}
	if len(texts) < least+1 {
		return "", nil, errReply(reply)
	}
	return texts[0], texts[1:], nil
}

func errReply(reply []any) error { return fmt.Errorf("unexpected reply %.60q", fmt.Sprint(reply...)) }

// unavailable makes an error that matches ErrUnavailable, with the text of err but not its type, so
// that no error of go-redis leaves the package.
func unavailable(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrParameters):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, context.Cause(ctx))
	}
	return fmt.Errorf("%w: %s: %v", ErrUnavailable, what, err)
}

package bloom

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
)

var (
	//go:embed scripts/common.lua
	commonLua string
	//go:embed scripts/ensure.lua
	ensureLua string
	//go:embed scripts/add.lua
	addLua string
	//go:embed scripts/ticket.lua
	ticketLua string
	//go:embed scripts/remove.lua
	removeLua string
	//go:embed scripts/tail.lua
	tailLua string
	//go:embed scripts/range.lua
	rangeLua string
	//go:embed scripts/touch.lua
	touchLua string
	//go:embed scripts/lease.lua
	leaseLua string
	//go:embed scripts/release.lua
	releaseLua string
	//go:embed scripts/logstart.lua
	logStartLua string
	//go:embed scripts/upload.lua
	uploadLua string
	//go:embed scripts/announce.lua
	announceLua string
	//go:embed scripts/switch.lua
	switchLua string

	ensureScript   = redisconn.NewScript(ensureLua)
	addScript      = redisconn.NewScript(commonLua, addLua)
	ticketScript   = redisconn.NewScript(commonLua, ticketLua)
	removeScript   = redisconn.NewScript(commonLua, removeLua)
	tailScript     = redisconn.NewScript(tailLua)
	rangeScript    = redisconn.NewScript(rangeLua)
	touchScript    = redisconn.NewScript(touchLua)
	leaseScript    = redisconn.NewScript(commonLua, leaseLua)
	releaseScript  = redisconn.NewScript(releaseLua)
	logStartScript = redisconn.NewScript(commonLua, logStartLua)
	uploadScript   = redisconn.NewScript(uploadLua)
	announceScript = redisconn.NewScript(announceLua)
	switchScript   = redisconn.NewScript(commonLua, switchLua)
)

// ErrUnavailable reports that Redis did not confirm an Add or a step of a Rebuild.
// Whether it took effect is unknown.
var ErrUnavailable = errors.New("bloom: redis unavailable")

var (
	errLost = errors.New("the filter is no longer in redis") // or another one of its name is
	errGap  = errors.New("the log does not go on where it was left")
)

const (
	// life is how long a key in Redis lives. Each process prolongs it every
	// touchEvery, so a filter expires when no process has used it for that long.
	life       = 7 * 24 * time.Hour
	touchEvery = time.Hour
	// orphanLife is how long the keys of a generation live that is not in use yet: the
	// process that rebuilds may die.
	orphanLife = 10 * time.Minute
	// callTimeout is how long Redis may take for a call, whatever the options of the
	// user's client are.
	callTimeout = time.Second
)

// A store is what Redis holds of a filter. Each method is one call to Redis, and
// returns within callTimeout.
type store struct {
	conn    *redisconn.Conn
	logConn *redisconn.Conn // for reads of the log: they are many, so few of them may hang
	names   keys.Filter
	o       Options
	self    string // the message with which this process announces its changes
}

func newStore(rdb redis.UniversalClient, o Options, self string) *store {
	return &store{
		conn:    redisconn.New(rdb, callTimeout, 1024),
		logConn: redisconn.New(rdb, min(callTimeout, o.MaxLag), 4),
		names:   keys.BloomFilter(o.Name), o: o, self: self,
	}
}

// eval runs a script and returns its reply, which may be an error.
func (s *store) eval(ctx context.Context, script *redisconn.Script, keys []string, args ...any) redisconn.Reply {
	return evalOn(ctx, s.conn, nil, script, keys, args...)
}

// evalOn runs a script on conn. If the caller leaves before the script's end, late gets
// the end.
func evalOn(ctx context.Context, conn *redisconn.Conn, late func(), script *redisconn.Script, keys []string, args ...any) redisconn.Reply {
	reply, err := redisconn.Do(ctx, conn, conn.Timeout(), func(ctx context.Context) (redisconn.Reply, error) {
		reply := script.Run(ctx, conn.Client(), redisconn.Call{Keys: keys, Args: args})
		return reply, reply.Err()
	}, func(redisconn.Reply, error) {
		if late != nil {
			late()
		}
	})
	if err != nil {
		return redisconn.NoReply(err)
	}
	return reply
}

// A record is one filter in Redis. If Redis loses the filter, the next filter of that
// name has another record.
type record struct {
	header string
	key    key
}

// generations names the generation in use and the one that a Rebuild is about to switch
// to; "" for none. Generations have random names, so that no two ever meet.
type generations struct{ current, next string }

func (rec *record) newGeneration(o Options, name string) *generation {
	return newGeneration(o, rec.key, rec.number(name))
}

func (rec *record) spread(o Options, name string) spread {
	size, hashes := o.size()
	return newSpread(rec.key, rec.number(name), size, hashes)
}

// number returns what the positions of a generation are computed with.
func (rec *record) number(name string) uint64 { return rec.key.sum("generation\x00" + name).a }

// ensure returns the record of the filter in Redis, which it makes if there is none:
// with an empty generation in use if the filter is complete, else without one.
func (s *store) ensure(ctx context.Context, complete bool) (*record, error) {
	proposal, _, err := newHeader(s.o)
	if err != nil {
		return nil, err
	}
	first, checksums := "", []any(nil)
	if complete {
		first, checksums = rand.Text(), encodeChecksums(make([]checksum, pieces(proposal.size)))
	}
	corrupt := "" // a header that Redis shall replace, unless somebody else already has
	for {
		args := append([]any{proposal.encode(), life.Milliseconds(), corrupt, first}, checksums...)
		stored, err := s.eval(ctx, ensureScript, []string{s.names.Record(), s.names.Log(), s.names.Sums(first)}, args...).Text()
		if err != nil {
			return nil, err
		}
		h, err := decodeHeader(stored)
		if errors.Is(err, errHeader) && corrupt != stored {
			corrupt = stored
			continue
		}
		if err != nil {
			return nil, err
		}
		k, err := h.accept(s.o)
		return &record{stored, k}, err
	}
}

// readRange reads a part of a piece.
func (s *store) readRange(ctx context.Context, generation string, piece, first, length int) (string, error) {
	return s.eval(ctx, rangeScript, []string{s.names.Piece(generation, piece)},
		strconv.Itoa(first), strconv.Itoa(first+length-1)).Text()
}

// touch prolongs the life of the generation in use.
func (s *store) touch(ctx context.Context, generation string) error {
	names := append([]string{s.names.Record(), s.names.Log()}, s.keysOf(generation)...)
	return s.eval(ctx, touchScript, names, generation, life.Milliseconds()).Err()
}

// keysOf names all keys of a generation, its checksums first.
func (s *store) keysOf(generation string) []string {
	size, _ := s.o.size()
	names := []string{s.names.Sums(generation)}
	for i := range pieces(size) {
		names = append(names, s.names.Piece(generation, i))
		if s.o.Counting {
			names = append(names, s.names.Counters(generation, i))
		}
	}
	return names
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

// unavailable hides go-redis' errors: their text stays, their types do not.
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

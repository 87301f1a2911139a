package bloom

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
)

var (
	//go:embed scripts/ensure.lua
	ensureLua string
	//go:embed scripts/add.lua
	addLua string
	//go:embed scripts/tail.lua
	tailLua string
	//go:embed scripts/ticket.lua
	ticketLua string
	//go:embed scripts/remove.lua
	removeLua string
	//go:embed scripts/range.lua
	rangeLua string
	//go:embed scripts/touch.lua
	touchLua string

	ensureScript = redis.NewScript(ensureLua)
	addScript    = redis.NewScript(addLua)
	tailScript   = redis.NewScript(tailLua)
	ticketScript = redis.NewScript(ticketLua)
	removeScript = redis.NewScript(removeLua)
	rangeScript  = redis.NewScript(rangeLua)
	touchScript  = redis.NewScript(touchLua)
)

// ErrUnavailable reports that Redis did not confirm an Add or a step of a Rebuild.
// Whether it took effect is unknown.
var ErrUnavailable = errors.New("bloom: redis unavailable")

var (
	errLost = errors.New("the filter is no longer in redis") // or another with its name
	errGap  = errors.New("the log does not go on where it was left")
)

const (
	// life is that of everything in Redis. Each process prolongs it every touchEvery,
	// so a filter ends when no process has used it for that long.
	life       = 7 * 24 * time.Hour
	touchEvery = time.Hour
	// orphanLife is that of a generation that is not in use yet: its rebuilder may
	// die.
	orphanLife = 10 * time.Minute
	// callTimeout bounds what Redis may take for one call, whatever the client's own
	// options are.
	callTimeout = time.Second
	// addChunk is how many ids go at most into one call: it keeps others waiting for
	// less than a millisecond.
	addChunk = 64
	// ticketLife is much longer than callTimeout: so who finds that a ticket of its own
	// is gone knows that it has spent it itself.
	ticketLife = time.Minute
	// tailChunk is how many entries of the log are read at a time.
	tailChunk = 512
)

// An incarnation is a filter for as long as its record stands.
type incarnation struct {
	header string
	key    key
}

// number is what the positions of a generation are computed with. Generations have
// random names, so that no two ever meet.
func (inc *incarnation) number(generation string) uint64 {
	return inc.key.sum("generation\x00" + generation).a
}

func (a *authority) spread(inc *incarnation, generation string) spread {
	size, hashes := a.o.size()
	return newSpread(inc.key, inc.number(generation), size, hashes)
}

// An authority is what Redis holds of a filter. Each method is one call, but for
// Redis having lost its scripts, and comes back within callTimeout.
type authority struct {
	rdb   redis.Scripter
	run   *redisconn.Runner
	poll  *redisconn.Runner
	names keys.Filter
	o     Options
	self  string // tells our announcements from others'
}

func newAuthority(rdb redis.UniversalClient, o Options, self string) *authority {
	a := &authority{
		rdb: rdb, names: keys.BloomFilter(o.Name), o: o, self: self,
		run:  redisconn.NewRunner(callTimeout, 1024),
		poll: redisconn.NewRunner(min(callTimeout, o.MaxLag), 4), // those that hang are not followed by many
	}
	if client, ok := rdb.(*redis.Client); ok {
		a.rdb = client.WithTimeout(callTimeout) // what is left behind comes to its end
	}
	return a
}

// call runs a script and gives its reply as a list.
func (a *authority) call(ctx context.Context, r *redisconn.Runner, script *redis.Script, names []string, args ...any) ([]any, error) {
	return redisconn.Run(ctx, r, func(ctx context.Context) ([]any, error) {
		return script.Run(ctx, a.rdb, names, args...).Slice()
	}, nil)
}

// ensure returns the filter that stands in Redis, which it makes if there is none:
// with a generation that holds nothing if it is complete, else without one.
func (a *authority) ensure(ctx context.Context, complete bool) (*incarnation, error) {
	proposal, _, err := newHeader(a.o)
	if err != nil {
		return nil, err
	}
	begin, args := "", []any{proposal.encode(), life.Milliseconds(), ""}
	if complete {
		begin = rand.Text()
		args = append(append(args, begin), encodeSums(make([]sum, pieces(proposal.size)))...)
	} else {
		args = append(args, "")
	}
	for {
		stands, err := redisconn.Run(ctx, a.run, func(ctx context.Context) (string, error) {
			return ensureScript.Run(ctx, a.rdb, []string{a.names.Record(), a.names.Log(), a.names.Sums(begin)}, args...).Text()
		}, nil)
		if err != nil {
			return nil, err
		}
		h, err := decodeHeader(stands)
		if errors.Is(err, errHeader) && args[2] != stands {
			args = slices.Clone(args) // the call may still be at it
			args[2] = stands          // replace it, unless somebody else has by now
			continue
		}
		if err != nil {
			return nil, err
		}
		k, err := h.accept(a.o)
		return &incarnation{stands, k}, err
	}
}

// state says which generations there are: the one in use and the one that a rebuild
// is about to switch to, "" for none.
type state struct{ current, next string }

// parseReply splits a reply into its kind and least to most texts.
func parseReply(reply []any, least, most int) (kind string, texts []string, err error) {
	for _, part := range reply[:min(len(reply), most+1)] {
		text, ok := part.(string)
		if !ok {
			return "", nil, fmt.Errorf("unexpected reply %.60q", fmt.Sprint(reply...))
		}
		texts = append(texts, text)
	}
	if len(texts) > 0 && texts[0] == "lost" {
		return "", nil, errLost
	}
	if len(texts) < least+1 {
		return "", nil, fmt.Errorf("unexpected reply %.60q", fmt.Sprint(reply...))
	}
	return texts[0], texts[1:], nil
}

// readRange reads a part of a piece.
func (a *authority) readRange(ctx context.Context, generation string, piece, first, length int) (string, error) {
	return redisconn.Run(ctx, a.run, func(ctx context.Context) (string, error) {
		return rangeScript.Run(ctx, a.rdb, []string{a.names.Piece(generation, piece)},
			strconv.Itoa(first), strconv.Itoa(first+length-1)).Text()
	}, nil)
}

// touch prolongs the life of a generation of n pieces, if it is in use.
func (a *authority) touch(ctx context.Context, generation string, n int) error {
	_, err := redisconn.Run(ctx, a.run, func(ctx context.Context) (int, error) {
		return touchScript.Run(ctx, a.rdb, append([]string{a.names.Record(), a.names.Log()}, a.keysOf(generation, n)...),
			generation, life.Milliseconds()).Int()
	}, nil)
	return err
}

// keysOf names the sums and the n pieces of a generation, and their counters.
func (a *authority) keysOf(generation string, n int) []string {
	names := []string{a.names.Sums(generation)}
	for i := range n {
		names = append(names, a.names.Piece(generation, i))
		if a.o.Counting {
			names = append(names, a.names.Counters(generation, i))
		}
	}
	return names
}

// unavailable keeps go-redis' errors inside the package; the text stays.
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

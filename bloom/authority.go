package bloom

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/bounded"
	"github.com/levee-go/levee/internal/keys"
)

var (
	//go:embed scripts/ensure.lua
	ensureLua string
	//go:embed scripts/add.lua
	addLua string
	//go:embed scripts/tail.lua
	tailLua string
	//go:embed scripts/range.lua
	rangeLua string
	//go:embed scripts/touch.lua
	touchLua string

	ensureScript = redis.NewScript(ensureLua)
	addScript    = redis.NewScript(addLua)
	tailScript   = redis.NewScript(tailLua)
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
	// addChunk is how many ids go into one call: it keeps others waiting for less
	// than a millisecond.
	addChunk = 64
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
	run   *bounded.Runner
	poll  *bounded.Runner
	names keys.Filter
	o     Options
	self  string // tells our announcements from others'
}

func newAuthority(rdb redis.UniversalClient, o Options, self string) *authority {
	a := &authority{
		rdb: rdb, names: keys.BloomFilter(o.Name), o: o, self: self,
		run:  bounded.NewRunner(callTimeout, 1024),
		poll: bounded.NewRunner(min(callTimeout, o.MaxLag), 4), // those that hang are not followed by many
	}
	if client, ok := rdb.(*redis.Client); ok {
		a.rdb = client.WithTimeout(callTimeout) // what is left behind comes to its end
	}
	return a
}

// call runs a script and gives its reply as a list.
func (a *authority) call(ctx context.Context, r *bounded.Runner, script *redis.Script, names []string, args ...any) ([]any, error) {
	return bounded.Do(ctx, r, func(ctx context.Context) ([]any, error) {
		return script.Run(ctx, a.rdb, names, args...).Slice()
	}, nil)
}

// ensure returns the filter that stands in Redis, which it makes if there is none.
func (a *authority) ensure(ctx context.Context) (*incarnation, error) {
	proposal, _, err := newHeader(a.o)
	if err != nil {
		return nil, err
	}
	corrupt := ""
	for {
		stands, err := bounded.Do(ctx, a.run, func(ctx context.Context) (string, error) {
			return ensureScript.Run(ctx, a.rdb, []string{a.names.Record(), a.names.Log()},
				proposal.encode(), life.Milliseconds(), corrupt).Text()
		}, nil)
		if err != nil {
			return nil, err
		}
		h, err := decodeHeader(stands)
		if errors.Is(err, errHeader) && corrupt != stands {
			corrupt = stands // replace it, unless somebody else has by now
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

// added is the answer to an add.
type added struct {
	state
	entry entry // the last one in the log
	stale bool  // nothing was done: state names a generation that was not given
}

// add puts hashes into the log and into the generations of s, which must be all there
// are, or nothing is done.
func (a *authority) add(ctx context.Context, inc *incarnation, hashes []hash, s state) (added, error) {
	names := []string{a.names.Record(), a.names.Log(), a.names.Rebuild()}
	args := []any{inc.header, encodeHashes(hashes), keepLog, life.Milliseconds(), orphanLife.Milliseconds(), a.names.Channel(), a.self}
	for _, generation := range []string{s.current, s.next} {
		if generation != "" {
			names, args = a.appendPositions(names, args, inc, generation, hashes)
		}
	}
	reply, err := a.call(ctx, a.run, addScript, names, args...)
	if err != nil {
		return added{}, err
	}
	return parseAdded(reply)
}

// appendPositions appends the positions of hashes in a generation, by piece.
func (a *authority) appendPositions(names []string, args []any, inc *incarnation, generation string, hashes []hash) ([]string, []any) {
	spread, touched := a.spread(inc, generation), map[uint64][]uint64{}
	for _, h := range hashes {
		w := spread.start(h)
		for range spread.hashes {
			p := w.next(&spread)
			touched[p/pieceBits] = append(touched[p/pieceBits], p%pieceBits)
		}
	}
	names = append(names, a.names.Sums(generation))
	args = append(args, generation, len(touched))
	for piece, positions := range touched {
		names = append(names, a.names.Piece(generation, int(piece)))
		args = append(args, piece, len(positions))
		for _, p := range positions {
			args = append(args, p)
		}
	}
	return names, args
}

func parseAdded(reply []any) (added, error) {
	s, rest, err := parseReply(reply, 2, 3)
	switch {
	case err != nil:
		return added{}, err
	case s == "stale":
		return added{state: state{rest[0], rest[1]}, stale: true}, nil
	case s != "ok" || len(rest) < 3:
		return added{}, fmt.Errorf("unexpected reply %.20q", s)
	}
	e, err := decodeEntry(rest[0])
	return added{state: state{rest[1], rest[2]}, entry: e}, err
}

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

// news is what the log has told.
type news struct {
	state
	last   entry // newest entry read
	hashes []hash
	more   bool     // there are newer ones
	sums   []string // fields and values
}

// tail reads the log behind from, or only where it ends if from is zero, together
// with the sums of generation: all of them, or their total.
func (a *authority) tail(ctx context.Context, inc *incarnation, from entry, generation string, all bool) (news, error) {
	which := ""
	if all {
		which = "all"
	}
	reply, err := a.call(ctx, a.poll, tailScript,
		[]string{a.names.Record(), a.names.Log(), a.names.Sums(generation)},
		inc.header, from.String(), tailChunk, which)
	if err != nil {
		return news{}, err
	}
	return parseNews(reply)
}

func parseNews(reply []any) (news, error) {
	kind, rest, err := parseReply(reply, 2, 4)
	if err != nil {
		return news{}, err
	}
	n := news{state: state{rest[0], rest[1]}}
	if kind == "gap" {
		return n, errGap
	}
	if kind != "ok" || len(rest) < 4 || len(reply) != 7 {
		return n, fmt.Errorf("unexpected reply %.20q", kind)
	}
	if n.last, err = decodeEntry(rest[2]); err != nil {
		return n, err
	}
	if n.hashes, err = decodeHashes(rest[3]); err != nil {
		return n, err
	}
	more, ok1 := reply[5].(int64)
	sums, ok2 := reply[6].([]any)
	for _, field := range sums {
		text, ok := field.(string)
		ok2 = ok2 && ok
		n.sums = append(n.sums, text)
	}
	if !ok1 || !ok2 {
		return n, errors.New("unexpected types in a reply")
	}
	n.more = more != 0
	return n, nil
}

// readRange reads a part of a piece.
func (a *authority) readRange(ctx context.Context, generation string, piece, first, length int) (string, error) {
	return bounded.Do(ctx, a.run, func(ctx context.Context) (string, error) {
		return rangeScript.Run(ctx, a.rdb, []string{a.names.Piece(generation, piece)},
			strconv.Itoa(first), strconv.Itoa(first+length-1)).Text()
	}, nil)
}

// touch prolongs the life of a generation of n pieces, if it is in use.
func (a *authority) touch(ctx context.Context, generation string, n int) error {
	_, err := bounded.Do(ctx, a.run, func(ctx context.Context) (int, error) {
		return touchScript.Run(ctx, a.rdb, append([]string{a.names.Record(), a.names.Log()}, a.keysOf(generation, n)...),
			generation, life.Milliseconds()).Int()
	}, nil)
	return err
}

// keysOf names the sums and the n pieces of a generation.
func (a *authority) keysOf(generation string, n int) []string {
	names := []string{a.names.Sums(generation)}
	for i := range n {
		names = append(names, a.names.Piece(generation, i))
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

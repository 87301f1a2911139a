package bloom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/redisconn"
)

// A rebuilding is the Rebuild of a shared filter that has its turn.
//
// The next generation grows in this process. The log of adds is read along, from
// MaxTransaction before the beginning on: so it holds what is scanned and what is
// added. When the scan is over it goes
//
//	freeze   the log is read once more, and then left alone
//	upload   the table goes to Redis, where nobody uses it yet
//	join     from now on every add goes to it too
//	add      what was added between freeze and join is added again
//	switch   it takes the place of the old one
//
// The old generation answers all the while. Nothing has to be cleaned up if the
// process dies: what it had uploaded ends by itself, and when the lease of its turn is
// gone, adds no longer go to its generation, which can never be switched to then.
type rebuilding struct {
	*shared
	inc   *incarnation
	token string
	name  string // of the generation
	next  *generation
	bits  table // which of its positions are set; from freeze on

	finished atomic.Bool // whatever still takes the turn takes it for nobody

	mu     sync.Mutex // guards what follows; held while the log is read
	at     entry      // where in the log
	frozen bool
}

func (r *rebuilding) run(ctx context.Context, ids iter.Seq2[string, error]) error {
	wait, err := r.begin(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var tending sync.WaitGroup
	defer tending.Wait()
	defer cancel(nil)
	tending.Go(func() { r.tend(ctx, cancel) })

	if err := pause(ctx, wait); err != nil {
		return r.cause(ctx, err)
	}
	err = <-contain.Go(func() error {
		return scan(ctx, ids, r.o.Progress, func(id string) { r.next.add(r.inc.key.sum(id)) })
	})
	if err != nil {
		return r.cause(ctx, &scanError{err})
	}
	for _, step := range []func(context.Context) error{r.freeze, r.upload, r.join, r.addAgain, r.switchTo} {
		if err := step(ctx); err != nil {
			return r.cause(ctx, err)
		}
	}
	return nil
}

// errScan marks what the caller's ids ended in.
var errScan = errors.New("scan")

type scanError struct{ error }

func (e *scanError) Is(target error) bool { return target == errScan }

func (e *scanError) Unwrap() error { return e.error }

// cause prefers what tend has ended ctx for over what that has led to.
func (r *rebuilding) cause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil && errors.Is(cause, errTurn) {
		return cause
	}
	return err
}

// begin finds where to begin in the log, and how long to wait before the scan.
func (r *rebuilding) begin(ctx context.Context) (time.Duration, error) {
	back := max(r.o.MaxTransaction, 0)
	reply, err := r.call(ctx, r.authority.run, beginScript, []string{r.names.Log()}, back.Milliseconds())
	if err != nil {
		return 0, err
	}
	at, wait, err := parseBegin(reply)
	if err != nil {
		return 0, err
	}
	r.at, r.next = at, newGeneration(r.o, r.inc.key, r.inc.number(r.name))
	if back == 0 {
		wait = 0
	}
	return min(wait, back), nil
}

func parseBegin(reply []any) (entry, time.Duration, error) {
	if len(reply) != 2 {
		return entry{}, 0, errGap
	}
	text, ok1 := reply[0].(string)
	ms, ok2 := reply[1].(int64)
	if !ok1 || !ok2 || ms < 0 {
		return entry{}, 0, fmt.Errorf("unexpected reply %.60q", fmt.Sprint(reply...))
	}
	at, err := decodeEntry(text)
	return at, time.Duration(ms) * time.Millisecond, err
}

// tend keeps the turn and reads the log along, until ctx ends. If it cannot go on, it
// ends ctx.
func (r *rebuilding) tend(ctx context.Context, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(turnRenew)
	defer ticker.Stop()
	for {
		mine, _, err := r.take(ctx)
		if err == nil && !mine || errors.Is(err, errLost) {
			cancel(fmt.Errorf("%w: %w", errTurn, errLost))
			return
		}
		// Any other error may pass; what matters is asked again by the scripts.
		if err := r.follow(ctx); errors.Is(err, errGap) || errors.Is(err, errLost) {
			cancel(fmt.Errorf("%w: %w", errTurn, err))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// follow reads the log along, until freeze.
func (r *rebuilding) follow(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frozen {
		return nil
	}
	return r.read(ctx, func(hashes []hash) {
		for _, h := range hashes {
			r.next.add(h)
		}
	})
}

// read reads the log to its end. It is called with mu held.
func (r *rebuilding) read(ctx context.Context, take func([]hash)) error {
	for {
		n, err := r.tail(ctx, r.inc, r.at, r.name, false)
		if err != nil {
			return err
		}
		take(n.hashes)
		if r.at = n.last; !n.more {
			return nil
		}
	}
}

func (r *rebuilding) freeze(ctx context.Context) error {
	if err := r.follow(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen, r.bits = true, r.next.table.bits()
	return nil
}

func (r *rebuilding) upload(ctx context.Context) error {
	for piece := range pieces(r.next.spread.size) {
		if err := r.uploadWords(ctx, r.names.Piece(r.name, piece), r.bits.piece(piece), encodeWords); err != nil {
			return err
		}
		if !r.o.Counting {
			continue
		}
		if err := r.uploadWords(ctx, r.names.Counters(r.name, piece), r.next.table.counters(piece), encodeCounters); err != nil {
			return err
		}
	}
	return nil
}

func (r *rebuilding) uploadWords(ctx context.Context, name string, words []uint64, encode func([]byte, []uint64) []byte) error {
	buffer, at := make([]byte, 0, rangeBytes), 0
	for part := range slices.Chunk(words, rangeBytes/8) {
		buffer = encode(buffer[:0], part)
		err := r.mine(ctx, uploadScript, []string{r.names.Rebuild(), name}, r.token, at, slices.Clone(buffer), orphanLife.Milliseconds())
		if err != nil {
			return err
		}
		at += len(buffer)
	}
	return nil
}

func (r *rebuilding) join(ctx context.Context) error {
	args := append([]any{r.inc.header, r.token, r.name, orphanLife.Milliseconds()}, encodeSums(sumsOf(&r.bits))...)
	return r.mine(ctx, joinScript, []string{r.names.Record(), r.names.Rebuild(), r.names.Sums(r.name)}, args...)
}

// mine runs a script that does nothing unless the turn is still ours.
func (r *rebuilding) mine(ctx context.Context, script *redis.Script, names []string, args ...any) error {
	mine, err := redisconn.Run(ctx, r.authority.run, func(ctx context.Context) (bool, error) {
		return script.Run(ctx, r.rdb, names, args...).Bool()
	}, nil)
	if err == nil && !mine {
		err = errTurn
	}
	return err
}

// addAgain adds what was added while the table was uploaded, which did not go into
// it. That it stands in the log twice then does no harm.
func (r *rebuilding) addAgain(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []hash
	err := r.read(ctx, func(hashes []hash) { found = append(found, hashes...) })
	for chunk := range slices.Chunk(found, r.o.chunk()) {
		if err == nil {
			err = r.addHashes(ctx, r.inc, chunk)
		}
	}
	return err
}

func (r *rebuilding) switchTo(ctx context.Context) error {
	s := r.guess()
	n := pieces(r.next.spread.size)
	next := r.keysOf(r.name, n)
	for range attempts {
		old := []string(nil)
		if s.current != "" {
			old = r.keysOf(s.current, n)
		}
		names := slices.Concat([]string{r.names.Record(), r.names.Log(), r.names.Rebuild()}, next, old)
		reply, err := r.call(ctx, r.authority.run, switchScript, names, r.inc.header, r.token, r.name, s.current, len(next),
			life.Milliseconds(), grace.Milliseconds(), r.names.Channel(), r.token)
		if err != nil {
			return err
		}
		switch {
		case len(reply) == 1 && reply[0] == "ok":
			return nil
		case len(reply) == 2 && reply[0] == "stale":
			s.current, _ = reply[1].(string)
		default:
			return errTurn
		}
	}
	return errTurn
}

package lock

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
)

// A Quorum takes locks on a majority of independent Redis servers, so that a
// minority of them may fail or forget. It is experimental. There is no queue: who
// finds a lock taken tries again after a random time.
//
// Its fences are made in two phases: the highest fence of the majority that granted
// the lock is put on each of them, and the lock counts only if a majority took it.
// Two grants of a lock have a server in common, on which the fence of the one was
// put while it still had the lock, that is before the other was granted it there:
// so the later one's is higher, whatever the clocks do.
type Quorum struct{ l *Locker }

// NewQuorum makes a Quorum of at least three servers that do not replicate each
// other. Options.Replicas and StrictFIFO must be zero. The error matches ErrConfig.
func NewQuorum(nodes []redis.UniversalClient, o Options) (*Quorum, error) {
	if len(nodes) < 3 {
		return nil, badConfig("nodes must be at least 3, got %d", len(nodes))
	}
	if o.Replicas != 0 || o.StrictFIFO {
		return nil, badConfig("Replicas and StrictFIFO must be zero for a quorum")
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	process := rand.Text()
	q := &quorum{timeout: min(max(o.Lease/10, 20*time.Millisecond), 500*time.Millisecond)}
	for _, node := range nodes {
		if v := reflect.ValueOf(node); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, badConfig("nodes must not be nil")
		}
		q.nodes = append(q.nodes, newStore(node, process))
	}
	return &Quorum{&Locker{c: bareCore(process, q, o), o: o}}, nil
}

// TryLock takes the lock name if a majority of the servers grants it at once. It
// is two round trips to all of them. The error matches ErrNotAcquired if another
// has it or tries at the same time, and ErrUnavailable if too few answer.
func (q *Quorum) TryLock(ctx context.Context, name string) (*Lease, error) {
	return q.l.lock(ctx, keys.Quorum, name, exclusive, false)
}

// Lock tries until it has the lock, ctx ends, or too few servers answer. The errors
// are those of [Locker.Lock].
func (q *Quorum) Lock(ctx context.Context, name string) (*Lease, error) {
	if checkName(name) == nil && q.l.c.keeper.holds(ctx, newTarget(q.l.o.Prefix, keys.Quorum, name, exclusive).keys[0]) {
		return nil, ErrDeadlock
	}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		lease, err := q.TryLock(ctx, name)
		var held *HeldError
		if !errors.As(err, &held) {
			return lease, err
		}
		timer := time.NewTimer(mathrand.N(pause) + time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, notAcquired(end(ctx))
		case <-q.l.c.closed:
			timer.Stop()
			return nil, ErrClosed
		}
	}
}

// Close gives back what is held and stops the Quorum's goroutines, as [Locker.Close] does.
func (q *Quorum) Close() error { return q.l.Close() }

// A quorum is several servers that act as one.
type quorum struct {
	nodes   []*store
	timeout time.Duration // for one of them
}

func (q *quorum) majority() int { return len(q.nodes)/2 + 1 }

// ask runs op on the nodes, all at once, and returns their answers in the order of
// the nodes. When decided says so the others get as much time again, not the
// whole timeout: so a hanging server costs little.
func (q *quorum) ask(ctx context.Context, nodes []int, decided func([]outcome) bool,
	op func(ctx context.Context, s *store) outcome,
) []outcome {
	ctx, cancel := context.WithTimeoutCause(ctx, q.timeout, unavailable(errors.New("no answer in time")))
	defer cancel()
	begin := time.Now()
	type answer struct {
		i int
		outcome
	}
	answers := make(chan answer, len(nodes))
	for i, n := range nodes {
		go func() { answers <- answer{i, op(ctx, q.nodes[n])} }()
	}
	outcomes := make([]outcome, len(nodes))
	for i := range outcomes {
		outcomes[i].err = unavailable(errors.New("no answer yet"))
	}
	enough := false
	for range nodes { // the end of ctx makes all of them answer
		a := <-answers
		outcomes[a.i] = a.outcome
		if !enough && decided(outcomes) {
			enough = true
			grace := time.AfterFunc(max(time.Since(begin), 10*time.Millisecond), cancel)
			defer grace.Stop()
		}
	}
	return outcomes
}

func (q *quorum) all() []int {
	all := make([]int, len(q.nodes))
	for i := range all {
		all[i] = i
	}
	return all
}

func count(outcomes []outcome, is func(outcome) bool) (n int) {
	for _, o := range outcomes {
		if is(o) {
			n++
		}
	}
	return n
}

func says(what ...string) func(outcome) bool {
	return func(o outcome) bool {
		for _, w := range what {
			if o.err == nil && o.what == w {
				return true
			}
		}
		return false
	}
}

func failed(o outcome) bool { return o.err != nil }

func (q *quorum) acquire(ctx context.Context, t *target, b bid, _ func(reply, error)) (reply, error) {
	sent := time.Now()
	refused := len(q.nodes) - q.majority() + 1 // so many make a majority impossible
	bids := q.ask(ctx, q.all(), func(o []outcome) bool {
		return count(o, says("granted")) >= q.majority() || count(o, says("busy")) >= refused
	}, func(ctx context.Context, s *store) outcome {
		r, err := s.acquire(ctx, t, b, nil)
		return outcome{r, err}
	})
	var top int64
	var owned []int
	for i, o := range bids {
		if o.err == nil && o.what == "granted" {
			top, owned = max(top, o.n[0]), append(owned, i)
		}
	}
	if len(owned) >= q.majority() {
		h := &hold{target: *t, owner: b.owners[0], fence: top}
		raised := q.ask(ctx, owned, func(o []outcome) bool { return count(o, says("ok")) >= q.majority() },
			func(ctx context.Context, s *store) outcome {
				r, err := s.renew(ctx, h, 0, top, "")
				return outcome{r, err}
			})
		if count(raised, says("ok")) >= q.majority() {
			return reply{what: "granted", n: [4]int64{top}, sent: sent}, nil
		}
	}
	// What was granted is given back before anything else is tried, also on those
	// servers whose answer is not known; the caller refuses them the rest.
	_, _ = q.release(context.WithoutCancel(ctx), t, b.owners[0], 0, 0, true, 0)
	if ctx.Err() != nil {
		return reply{}, context.Cause(ctx)
	}
	if conflicts := count(bids, func(o outcome) bool { return errors.Is(o.err, ErrConflict) }); conflicts >= refused {
		return reply{}, ErrConflict
	}
	if n := count(bids, failed); n >= refused {
		return reply{}, unavailable(errors.New("a majority of the servers did not answer"))
	}
	r := reply{what: "busy"}
	for _, o := range bids {
		if o.err == nil && o.what == "busy" {
			r.n[0] = max(r.n[0], o.n[0])
		}
	}
	return r, nil
}

// release goes to all servers, with a refusal for those to which the acquisition
// is still under way.
func (q *quorum) release(ctx context.Context, t *target, owner string, fence, ends int64, _ bool, keep time.Duration) (string, error) {
	good := says("ok", "again", "past")
	all := q.ask(ctx, q.all(), func(o []outcome) bool { return count(o, good) >= q.majority() },
		func(ctx context.Context, s *store) outcome {
			what, err := s.release(ctx, t, owner, fence, ends, true, keep)
			return outcome{reply{what: what}, err}
		})
	return q.sum(all, "ok", good)
}

func (q *quorum) renew(ctx context.Context, h *hold, lease time.Duration, raise int64, heir string) (reply, error) {
	sent := time.Now()
	all := q.ask(ctx, q.all(), func(o []outcome) bool { return count(o, says("ok")) >= q.majority() },
		func(ctx context.Context, s *store) outcome {
			r, err := s.renew(ctx, h, lease, raise, heir)
			return outcome{r, err}
		})
	what, err := q.sum(all, "ok", says("ok"))
	return reply{what: what, sent: sent}, err
}

// sum is what a majority says: good, or that it is not, or nothing.
func (q *quorum) sum(all []outcome, word string, good func(outcome) bool) (string, error) {
	if count(all, good) >= q.majority() {
		return word, nil
	}
	if bad := len(all) - count(all, failed) - count(all, good); bad > len(all)-q.majority() {
		for _, o := range all {
			if o.err == nil && !good(o) {
				return o.what, nil
			}
		}
	}
	return "", unavailable(errors.New("a majority of the servers did not answer"))
}

func (q *quorum) renewMany(ctx context.Context, due []*hold, terms []time.Duration) []outcome {
	outcomes := make([]outcome, len(due))
	done := make(chan struct{}, len(due))
	for i, h := range due {
		go func() {
			r, err := q.renew(ctx, h, terms[i], 0, "")
			outcomes[i] = outcome{r, err}
			done <- struct{}{}
		}()
	}
	for range due {
		<-done
	}
	return outcomes
}

func (q *quorum) info(ctx context.Context, section string) (all []map[string]string) {
	for _, node := range q.nodes {
		all = append(all, node.info(ctx, section)...)
	}
	return all
}

// Nobody waits in a queue of a quorum, and nobody looks at one of its locks.
func (q *quorum) leave(context.Context, *target, string) error   { return nil }
func (q *quorum) inspect(context.Context, *target) (Info, error) { return Info{}, nil }

package lock

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
)

// A Quorum takes locks on a majority of independent Redis servers, so that a
// minority of them may fail or forget. It is experimental. There is no queue: a
// caller that finds a lock taken tries again after a random time.
//
// Its fences are made in two phases: the highest fence of the majority that granted
// the lock is put on each of these servers, and the lock counts only if a majority
// took it. Any two majorities share a server. There the earlier holder wrote its
// fence before the later one was granted the lock, so the later fence is higher,
// whatever the clocks do.
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
	for i, node := range nodes {
		if err := redisconn.CheckClient(node, redisconn.Scripts); err != nil {
			return nil, badConfig("nodes[%d]: %v", i, err)
		}
		q.nodes = append(q.nodes, newStore(node, process))
	}
	l := bareLocker(process, q, q.nodes, o)
	for _, node := range nodes {
		redisconn.Advise(node, l.log)
	}
	return &Quorum{&Locker{shared: l, o: o}}, nil
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
	t := newTarget(q.l.o.Prefix, keys.Quorum, name, exclusive)
	if checkName(name) == nil && heldBy(ctx, t.record()) {
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
			return nil, notAcquired(ctx)
		case <-q.l.shared.closed:
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

var (
	errNoAnswerYet = unavailable(errors.New("no answer yet"))
	errTooSlow     = unavailable(errors.New("no answer in time"))
	errNoMajority  = unavailable(errors.New("a majority of the servers did not answer"))
)

// A vote is what one node answered, or its error.
type vote[R any] struct {
	reply R
	err   error
}

// poll runs op on the nodes, all at once, and returns their votes in the order of the
// nodes. When decided says that the votes so far are enough, the other nodes get as
// much time again, not the whole timeout: so a hanging server costs little.
func poll[R any](ctx context.Context, q *quorum, nodes []*store, decided func([]vote[R]) bool,
	op func(ctx context.Context, s *store) (R, error),
) []vote[R] {
	ctx, cancel := context.WithTimeoutCause(ctx, q.timeout, errTooSlow)
	defer cancel()
	begin := time.Now()
	type numbered struct {
		i int
		vote[R]
	}
	arriving := make(chan numbered, len(nodes))
	votes := make([]vote[R], len(nodes))
	for i, node := range nodes {
		votes[i].err = errNoAnswerYet
		go func() {
			r, err := op(ctx, node)
			arriving <- numbered{i, vote[R]{r, err}}
		}()
	}
	enough := false
	for range nodes { // the end of ctx makes all of them answer
		v := <-arriving
		votes[v.i] = v.vote
		if !enough && decided(votes) {
			enough = true
			hurry := time.AfterFunc(max(time.Since(begin), 10*time.Millisecond), cancel)
			defer hurry.Stop()
		}
	}
	return votes
}

// count is how many of votes there are that answered and satisfy is.
func count[R any](votes []vote[R], is func(R) bool) (n int) {
	for _, v := range votes {
		if v.err == nil && is(v.reply) {
			n++
		}
	}
	return n
}

func failures[R any](votes []vote[R]) (n int) {
	for _, v := range votes {
		if v.err != nil {
			n++
		}
	}
	return n
}

func (q *quorum) majority() int { return len(q.nodes)/2 + 1 }

// blocking is how many nodes make a majority of the others impossible.
func (q *quorum) blocking() int { return len(q.nodes) - q.majority() + 1 }

func isGranted(r bidReply) bool { return r.answer == answerGranted }
func isBusy(r bidReply) bool    { return r.answer == answerBusy }
func isOK(r renewReply) bool    { return r.answer == answerOK }

func (q *quorum) acquire(ctx context.Context, t *target, b bid) (bidReply, error) {
	sent := time.Now()
	votes := poll(ctx, q, q.nodes, func(votes []vote[bidReply]) bool {
		return count(votes, isGranted) >= q.majority() || count(votes, isBusy) >= q.blocking()
	}, func(ctx context.Context, s *store) (bidReply, error) { return s.acquire(ctx, t, b) })
	var fence int64
	var owned []*store
	for i, v := range votes {
		if v.err == nil && isGranted(v.reply) {
			fence, owned = max(fence, v.reply.granted.fence), append(owned, q.nodes[i])
		}
	}
	if len(owned) >= q.majority() && q.raiseFence(ctx, owned, &grant{target: *t, owner: b.owners[0], fence: fence}) {
		return bidReply{answer: answerGranted, granted: granted{fence: fence, sent: sent}}, nil
	}
	// What was granted is given back before anything else is tried, also on those
	// servers whose answer is not known.
	_ = q.refuse(context.WithoutCancel(ctx), t, b.owners[0])
	switch {
	case ctx.Err() != nil:
		return bidReply{}, context.Cause(ctx)
	case conflicts(votes) >= q.blocking():
		return bidReply{}, ErrConflict
	case failures(votes) >= q.blocking():
		return bidReply{}, errNoMajority
	}
	r := bidReply{answer: answerBusy}
	for _, v := range votes {
		r.busy.remaining = max(r.busy.remaining, v.reply.busy.remaining)
	}
	return r, nil
}

func conflicts(votes []vote[bidReply]) (n int) {
	for _, v := range votes {
		if errors.Is(v.err, ErrConflict) {
			n++
		}
	}
	return n
}

// raiseFence puts the fence of g on the nodes that granted it, and reports whether a
// majority took it.
func (q *quorum) raiseFence(ctx context.Context, owned []*store, g *grant) bool {
	enough := func(votes []vote[renewReply]) bool { return count(votes, isOK) >= q.majority() }
	return enough(poll(ctx, q, owned, enough, func(ctx context.Context, s *store) (renewReply, error) {
		return s.raiseFence(ctx, g, g.fence)
	}))
}

// release goes to all servers, with a refusal for those on which the bid is still on
// its way.
func (q *quorum) release(ctx context.Context, g *grant, keep time.Duration) (answer, error) {
	return q.giveBack(ctx, func(ctx context.Context, s *store) (answer, error) { return s.releaseOrRefuse(ctx, g, keep) })
}

func (q *quorum) refuse(ctx context.Context, t *target, owner string) error {
	_, err := q.giveBack(ctx, func(ctx context.Context, s *store) (answer, error) {
		return s.releaseOrRefuse(ctx, &grant{target: *t, owner: owner}, 0)
	})
	return err
}

func (q *quorum) giveBack(ctx context.Context, op func(ctx context.Context, s *store) (answer, error)) (answer, error) {
	returned := func(a answer) bool { return a == answerOK || a == answerAgain || a == answerPast }
	votes := poll(ctx, q, q.nodes, func(votes []vote[answer]) bool { return count(votes, returned) >= q.majority() }, op)
	return verdict(q, votes, answerOK, returned)
}

func (q *quorum) renew(ctx context.Context, renewals []renewal) []renewed {
	results := make([]renewed, len(renewals))
	var all sync.WaitGroup
	for i, r := range renewals {
		all.Go(func() {
			results[i].renewReply, results[i].err = q.ask(ctx, func(ctx context.Context, s *store) (renewReply, error) {
				one := s.renew(ctx, []renewal{r})[0]
				return one.renewReply, one.err
			})
		})
	}
	all.Wait()
	return results
}

func (q *quorum) check(ctx context.Context, g *grant) (renewReply, error) {
	return q.ask(ctx, func(ctx context.Context, s *store) (renewReply, error) { return s.check(ctx, g) })
}

// ask has the nodes renew or check a lease. The common answer has no end of the lease:
// the servers have none in common.
func (q *quorum) ask(ctx context.Context, op func(ctx context.Context, s *store) (renewReply, error)) (renewReply, error) {
	sent := time.Now()
	votes := poll(ctx, q, q.nodes, func(votes []vote[renewReply]) bool { return count(votes, isOK) >= q.majority() }, op)
	r, err := verdict(q, votes, renewReply{answer: answerOK}, isOK)
	r.ends, r.sent = 0, sent
	return r, err
}

// verdict is yes if a majority says so, the first no if too many say no for a
// majority of the others, and an error if too few answered.
func verdict[R any](q *quorum, votes []vote[R], yes R, isYes func(R) bool) (R, error) {
	ayes := count(votes, isYes)
	if ayes >= q.majority() {
		return yes, nil
	}
	if noes := len(votes) - failures(votes) - ayes; noes >= q.blocking() {
		for _, v := range votes {
			if v.err == nil && !isYes(v.reply) {
				return v.reply, nil
			}
		}
	}
	var none R
	return none, errNoMajority
}

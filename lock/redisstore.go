package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

const (
	patientTime = 5 * time.Second        // timeout of a script, whatever the client's own options are
	promptTime  = 100 * time.Millisecond // timeout of a script on the caller's own goroutine
	maxScripts  = 1 << 16                // scripts without a reply at a time
)

// A redisStore runs the scripts in Redis. Each operation takes one round trip, two after the
// server has lost its scripts. Each returns when ctx ends, whatever Redis does.
//
// It has two connections because a server that pauses for a second must not fail a Lock or
// an Unlock. With the patient one alone a free lock takes 1.2 to 1.8 times as long
// (BenchmarkUncontendedPair), since its operations do not run on the caller's goroutine.
type redisStore struct {
	prompt  *redisconn.Conn // a script without a reply here is sent again over patient
	patient *redisconn.Conn
	process any // a string
	// late is called with the reply, or the error, of a copy of a bid that its caller did
	// not wait for. It is set before the first bid.
	late func(t *target, b bid, r bidReply, err error)

	link *redisconn.Link // nil: not opened
	mute func()
}

func newRedisStore(rdb redis.UniversalClient, process string) *redisStore {
	return &redisStore{
		prompt:  redisconn.New(rdb, promptTime, maxScripts),
		patient: redisconn.New(rdb, patientTime, maxScripts),
		process: process,
		late:    func(*target, bid, bidReply, error) {},
	}
}

func (s *redisStore) open(l *locker) {
	s.late, s.link = l.lateReply, redisconn.OpenLink(s.prompt.Client())
	s.mute = s.link.Subscribe(keys.LockChannels+l.process, redisconn.Subscriber{
		Message: l.hear,
		Gap:     l.gap,
		Live:    func(bool) { l.noteHearing() },
	})
}

func (s *redisStore) live() bool      { return s.link.Live() }
func (s *redisStore) clustered() bool { return s.prompt.Clustered() }
func (s *redisStore) silence()        { s.mute() }
func (s *redisStore) close()          { s.link.Close() }

func (s *redisStore) acquire(ctx context.Context, t *target, b bid) (bidReply, error) {
	args := make([]any, 0, 9+len(b.owners))
	args = append(args, modes[t.mode], t.permits, keys.LockChannels, s.process, b.entry, b.ticket, b.more,
		b.lease.Milliseconds(), b.label)
	for _, owner := range b.owners {
		args = append(args, owner)
	}
	run := scriptRun{acquireScript, t.call(args...), b.confirm, t.mode == exclusive}
	return s.bid(ctx, run, t.mode, func(r bidReply, err error) { s.late(t, b, r, err) })
}

func (s *redisStore) acquireAll(ctx context.Context, targets []target, b bid) (bidReply, error) {
	call := redisconn.Call{Args: []any{b.lease.Milliseconds(), b.label}}
	for i := range targets {
		call.Keys = append(call.Keys, targets[i].keys[:2]...)
		call.Args = append(call.Args, b.owners[i])
	}
	run := scriptRun{script: acquireAllScript, call: call, confirm: b.confirm}
	return s.bid(ctx, run, exclusive, func(r bidReply, err error) {
		for i := range targets {
			one := b
			one.owners = b.owners[i : i+1]
			s.late(&targets[i], one, r, err)
		}
	})
}

// bid runs a script that takes locks, and calls late with replies that its caller did not wait for.
func (s *redisStore) bid(ctx context.Context, run scriptRun, m mode, late func(bidReply, error)) (bidReply, error) {
	copies := &lateCopies{tell: late, mode: m}
	r, err := s.eval(ctx, run, copies.came)
	var answer bidReply
	if err == nil {
		answer, err = parsed(r.bid())
	}
	copies.answered(answer)
	return answer, err
}

// lateCopies handles replies to copies of a bid that the caller did not wait for, because
// it left or sent the bid again. If it sent it again, such a copy can be a second grant:
//
//  1. bid for owner 7     ──▶ delayed in this process
//  2. bid for owner 7 again, which is granted and released
//  3. owner 8 is granted the lock, and releases it
//  4. the first copy arrives: Redis knows only of 8, and grants the lock to 7
//
// A copy with the same reply as the caller's changes nothing: the caller has the lock. Of a
// permit the two may have different fences, see acquire.lua, but not different ends.
type lateCopies struct {
	tell func(bidReply, error)
	mode mode

	mu    sync.Mutex        // guards the fields below
	heard bool              // the caller has its reply
	got   bidReply          // the caller's reply
	early []redisconn.Reply // replies to copies that came before it
}

// came is called with the reply to a copy.
func (c *lateCopies) came(r redisconn.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.heard {
		c.early = append(c.early, r)
		return
	}
	c.judge(r)
}

// answered is called with the caller's reply, or the zero bidReply if that is an error.
func (c *lateCopies) answered(answer bidReply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got, c.heard = answer, true
	for _, r := range c.early {
		c.judge(r)
	}
}

// judge tells of the reply to a copy, unless it is the caller's too. The caller holds mu.
func (c *lateCopies) judge(late redisconn.Reply) {
	value, err := late.Result()
	var r bidReply
	if err == nil {
		r, err = (&reply{value: value}).bid()
	}
	if got := c.got; got.answer == answerGranted {
		sameFence := r.granted.fence == got.granted.fence || c.mode == permit
		if err != nil || r.answer == answerGranted && sameFence && r.granted.ends == got.granted.ends {
			return
		}
	}
	c.tell(r, err)
}

func (s *redisStore) release(ctx context.Context, g *grant, keep time.Duration) (answer, error) {
	return s.giveBack(ctx, &g.target, g.owner, g.fence, g.ends, false, keep)
}

func (s *redisStore) refuse(ctx context.Context, t *target, owner string) error {
	_, err := s.giveBack(ctx, t, owner, 0, 0, true, 0)
	return err
}

func (s *redisStore) giveBack(ctx context.Context, t *target, owner string, fence, ends int64, refuse bool, keep time.Duration) (answer, error) {
	args := []any{modes[t.mode], t.permits, keys.LockChannels, owner, fence, ends, refuse, keep.Milliseconds()}
	r, err := s.eval(ctx, scriptRun{script: releaseScript, call: t.call(args...), short: t.mode == exclusive}, nil)
	if err != nil {
		return "", err
	}
	what, _, err := r.words()
	return parsed(what, err)
}

func (s *redisStore) leave(ctx context.Context, t *target, entry string) error {
	call := t.call(entry, t.permits, keys.LockChannels)
	_, err := s.eval(ctx, scriptRun{script: leaveScript, call: call}, nil)
	return err
}

func (s *redisStore) renew(ctx context.Context, renewals []renewal) []renewed {
	if len(renewals) == 1 {
		r, err := s.change(ctx, renewals[0])
		return []renewed{{r, err}}
	}
	sent := time.Now()
	calls := make([]redisconn.Call, len(renewals))
	for i := range renewals {
		calls[i] = renewals[i].call()
	}
	replies := s.patient.Eval(ctx, renewScript, calls, nil)
	results := make([]renewed, len(renewals))
	for i := range results {
		r, err := reply{sent: sent}, error(nil)
		if r.value, err = replies[i].Result(); err == nil {
			results[i].renewReply, err = r.renewal()
		}
		if err != nil {
			results[i].err = refine(ctx, err)
		}
	}
	return results
}

func (s *redisStore) change(ctx context.Context, r renewal) (renewReply, error) {
	run := scriptRun{script: renewScript, call: r.call()}
	if r.writes() {
		run.confirm = r.grant.o.confirm()
	}
	answer, err := s.eval(ctx, run, nil)
	if err != nil {
		return renewReply{}, err
	}
	return parsed(answer.renewal())
}

// call returns the call of renew.lua for r.
func (r *renewal) call() redisconn.Call {
	g := r.grant
	return g.held(modes[g.mode], g.owner, g.fence, r.lease.Milliseconds(), r.raise, r.heir)
}

func (s *redisStore) inspect(ctx context.Context, t *target) (Info, error) {
	r, err := s.eval(ctx, scriptRun{script: inspectScript, call: t.call(modes[t.mode])}, nil)
	if err != nil {
		return Info{}, err
	}
	return parsed(r.info())
}

func (s *redisStore) force(ctx context.Context, t *target, fence int64) (answer, int64, error) {
	call := t.call(modes[t.mode], t.permits, keys.LockChannels, fence)
	r, err := s.eval(ctx, scriptRun{script: forceScript, call: call}, nil)
	if err != nil {
		return "", 0, err
	}
	what, rest, err := r.words()
	if err == nil && what == answerHeld {
		err = numbers(rest, &fence)
	}
	what, err = parsed(what, err)
	return what, fence, err
}

// A scriptRun is one run of a script, with the confirmations that it needs.
type scriptRun struct {
	script  *redisconn.Script
	call    redisconn.Call
	confirm redisconn.Confirm
	short   bool // it has a short way, over the record alone
}

// eval runs a script. While the keys of the lock are on two nodes of a cluster, it runs the
// script's short way, with the record alone.
func (s *redisStore) eval(ctx context.Context, run scriptRun, late func(redisconn.Reply)) (reply, error) {
	answer, err := s.evalOnce(ctx, run, late)
	if err != nil && run.short && strings.HasPrefix(err.Error(), "TRYAGAIN") {
		run.call = recordOnly(run.call)
		answer, err = s.evalOnce(ctx, run, late)
	}
	if err != nil {
		return reply{}, refine(ctx, err)
	}
	return answer, nil
}

// evalOnce runs a script, and sends it again if the server does not reply within promptTime:
// every script may be repeated. The reply's sent is the time of the first attempt, which may
// have been the one that took effect. It calls late with a reply that comes after the caller
// has left or the script was sent again.
func (s *redisStore) evalOnce(ctx context.Context, run scriptRun, late func(redisconn.Reply)) (reply, error) {
	answer := reply{sent: time.Now()}
	var r redisconn.Reply
	if run.confirm.Wanted() {
		r, answer.confirmed = s.evalAndWait(ctx, run, late)
	} else {
		r = s.prompt.EvalOne(ctx, run.script, run.call, late)
		if err := r.Err(); err != nil && !redisconn.Answered(err) && ctx.Err() == nil {
			r = s.patient.EvalOne(ctx, run.script, run.call, late)
		}
	}
	var err error
	answer.value, err = r.Result()
	return answer, err
}

// evalAndWait runs a script and waits for its confirmations.
func (s *redisStore) evalAndWait(ctx context.Context, run scriptRun, late func(redisconn.Reply)) (redisconn.Reply, int) {
	type waited struct {
		reply     redisconn.Reply
		confirmed int
	}
	var tooLate func(waited, error)
	if late != nil {
		tooLate = func(w waited, err error) { late(redisconn.ReplyOr(w.reply, err)) }
	}
	w, err := redisconn.Do(ctx, s.patient, patientTime, func(ctx context.Context) (waited, error) {
		replies, confirmed, err := s.patient.EvalAndWait(ctx, run.script, []redisconn.Call{run.call}, run.confirm)
		switch {
		case len(replies) == 0:
			return waited{}, err
		case run.confirm.Disk && err != nil && redisconn.Answered(err):
			return waited{}, badConfig("Fsync: the server does not tell what is on its disk: %v", err)
		case err != nil && strings.HasPrefix(err.Error(), "NOPERM"):
			return waited{}, badConfig("Replicas: the server does not tell what they have: WAIT: %v", err)
		}
		return waited{replies[0], confirmed}, replies[0].Err() // a WAIT that failed has confirmed nothing
	}, tooLate)
	return redisconn.ReplyOr(w.reply, err), w.confirmed
}

// parsed returns value, or turns err into an error that matches ErrUnavailable.
func parsed[T any](value T, err error) (T, error) {
	if err != nil {
		var none T
		return none, unavailable(err)
	}
	return value, nil
}

// errSlots reports that the keys of a script are in several slots: a proxy may hide that it is
// in front of a cluster.
var errSlots = errors.New("lock: keys in several slots")

// refine turns an error of Redis, or of the wait for it, into an error of this package.
func refine(ctx context.Context, err error) error {
	switch {
	case errors.Is(context.Cause(ctx), ErrClosed):
		return ErrClosed
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, wait.Ended(ctx))
	case errors.Is(err, ErrConfig):
		return err
	case strings.Contains(err.Error(), "WRONGTYPE"):
		return ErrConflict
	case strings.Contains(err.Error(), "CROSSSLOT"):
		return errSlots
	}
	return unavailable(err)
}

// final reports whether it makes no sense to try again after err.
func final(err error) bool { return errors.Is(err, ErrConflict) || !errors.Is(err, ErrUnavailable) }

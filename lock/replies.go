package lock

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// An answer is the first word of a script's reply. The scripts say what each means.
type answer string

const (
	answerGranted  answer = "granted"
	answerBusy     answer = "busy"
	answerDone     answer = "done"
	answerGone     answer = "gone"
	answerOK       answer = "ok"
	answerAgain    answer = "again"
	answerPast     answer = "past"
	answerExpired  answer = "expired"
	answerTaken    answer = "taken"
	answerLost     answer = "lost"
	answerReleased answer = "released"
	answerFree     answer = "free"
	answerHeld     answer = "held"
	answerForced   answer = "forced"
)

var answers = []answer{
	answerGranted, answerBusy, answerDone, answerGone, answerOK, answerAgain, answerPast,
	answerExpired, answerTaken, answerLost, answerReleased, answerFree, answerHeld, answerForced,
}

// cause returns why an owner does not have its lock, nil for answerOK.
func (a answer) cause() error {
	switch a {
	case answerOK:
		return nil
	case answerExpired:
		return ErrExpired
	case answerLost:
		return ErrStateLost
	case answerReleased:
		return ErrNotHeld
	}
	return ErrTakenOver
}

// A bidReply is the reply to a bid. The answers granted and busy have details, done and
// gone have none.
type bidReply struct {
	answer  answer
	granted granted
	busy    busy
}

// A granted is the lock that the owners of a bid got.
type granted struct {
	fence     int64
	ends      int64     // when the lease ends, by the server's clock (ms)
	ticket    int64     // the entry is in the queue again, with this ticket; 0: it is not
	confirmed int       // how many replicas have confirmed it
	sent      time.Time // before the command left this process
}

// A busy says how long the lock may still be held, and where the entry is in the queue.
type busy struct {
	remaining time.Duration
	waiting   int
	ticket    int64
	askAgain  time.Duration // when to bid again, unless a message comes before
}

// A renewReply is the reply of renew.lua, which reads or changes a lease.
type renewReply struct {
	answer    answer // ok, or why the lease is not held
	ends      int64  // by the server's clock (ms)
	confirmed int
	sent      time.Time
}

// A reply is a reply of Redis that is not parsed yet.
type reply struct {
	value     any
	confirmed int       // how many replicas have confirmed the command
	sent      time.Time // before the command left this process
}

func (r *reply) bid() (bidReply, error) {
	what, rest, err := r.words()
	if err != nil {
		return bidReply{}, err
	}
	b := bidReply{answer: what}
	switch what {
	case answerGranted:
		b.granted = granted{confirmed: r.confirmed, sent: r.sent}
		err = numbers(rest, &b.granted.fence, &b.granted.ends, &b.granted.ticket)
	case answerBusy:
		var remaining, waiting, again int64
		err = numbers(rest, &remaining, &waiting, &b.busy.ticket, &again)
		b.busy.remaining, b.busy.waiting, b.busy.askAgain = millis(remaining), int(waiting), millis(again)
	}
	return b, err
}

func (r *reply) renewal() (renewReply, error) {
	what, rest, err := r.words()
	if err != nil {
		return renewReply{}, err
	}
	renewed := renewReply{answer: what, confirmed: r.confirmed, sent: r.sent}
	if what == answerOK {
		err = numbers(rest, &renewed.ends)
	}
	return renewed, err
}

// words splits a reply into its answer and the details.
func (r *reply) words() (answer, []any, error) {
	word, _ := r.value.(string)
	list, _ := r.value.([]any)
	if len(list) > 0 {
		word, _ = list[0].(string)
		list = list[1:]
	}
	if !slices.Contains(answers, answer(word)) {
		return "", nil, r.unexpected()
	}
	return answer(word), list, nil
}

func (r *reply) unexpected() error { return fmt.Errorf("unexpected answer %.100q", r.value) }

// numbers stores the numbers of list through the pointers into.
func numbers(list []any, into ...*int64) error {
	if len(list) != len(into) {
		return errors.New("an answer of an unexpected length")
	}
	for i, value := range list {
		n, ok := value.(int64)
		if !ok {
			return errors.New("an answer without its numbers")
		}
		*into[i] = n
	}
	return nil
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func (r *reply) info() (Info, error) {
	list, _ := r.value.([]any)
	if len(list) != 8 {
		return Info{}, r.unexpected()
	}
	label, _ := list[7].(string)
	var held, holders, fence, remaining, waiting, waited, done int64
	if err := numbers(list[:7], &held, &holders, &fence, &remaining, &waiting, &waited, &done); err != nil {
		return Info{}, err
	}
	return Info{
		Held: held == 1, Holders: int(holders), Fence: fence, Remaining: millis(remaining), Label: label,
		Waiting: int(waiting), Longest: time.Duration(waited) * time.Microsecond, Done: millis(done),
	}, nil
}

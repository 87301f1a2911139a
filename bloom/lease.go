package bloom

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"iter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redisconn"
)

var (
	//go:embed scripts/turn.lua
	turnLua string
	//go:embed scripts/begin.lua
	beginLua string
	//go:embed scripts/upload.lua
	uploadLua string
	//go:embed scripts/join.lua
	joinLua string
	//go:embed scripts/switch.lua
	switchLua string
	//go:embed scripts/pass.lua
	passLua string

	turnScript   = redis.NewScript(turnLua)
	beginScript  = redis.NewScript(beginLua)
	uploadScript = redis.NewScript(uploadLua)
	joinScript   = redis.NewScript(joinLua)
	switchScript = redis.NewScript(switchLua)
	passScript   = redis.NewScript(passLua)
)

const (
	turnLife  = 10 * time.Second       // how long a rebuilder that died holds others up
	turnRenew = time.Second            // also how often it reads the log
	turnLook  = 250 * time.Millisecond // how often those who wait look
	grace     = time.Minute            // for the old generation
	catchUp   = 5 * time.Second        // for our own replica, when all is done
)

var errTurn = errors.New("the turn to rebuild was lost")

func (s *shared) rebuild(ctx context.Context, ids iter.Seq2[string, error]) error {
	s.count(+1)
	defer s.count(-1)
	r, mine, err := s.takeTurn(ctx)
	if err == nil && mine {
		err = r.run(ctx, ids)
	}
	if r != nil {
		r.finish(mine)
	}
	switch {
	case err == nil:
		if mine {
			s.rebuilds.Add(1)
		}
		s.awaitChange(ctx, r.name)
		return nil
	case ctx.Err() != nil:
		return over(ctx)
	case errors.Is(err, errScan):
		return errors.Unwrap(err)
	}
	return unavailable(ctx, "Rebuild", err)
}

func (s *shared) count(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rebuilding += by
}

// takeTurn waits for a turn in the filter that stands in Redis.
func (s *shared) takeTurn(ctx context.Context) (r *rebuilding, mine bool, err error) {
	for range attempts {
		inc, err := s.incarnation(ctx)
		if err != nil {
			return nil, false, err
		}
		r = &rebuilding{shared: s, inc: inc, token: rand.Text(), name: rand.Text()}
		mine, err = r.wait(ctx)
		if !errors.Is(err, errLost) {
			return r, mine, err
		}
		s.drop(inc)
	}
	return nil, false, errLost
}

// wait gets a turn, or tells that another Rebuild has succeeded meanwhile; name is
// then its generation.
func (r *rebuilding) wait(ctx context.Context) (mine bool, err error) {
	before, first := "", true
	for {
		mine, current, err := r.take(ctx)
		if err != nil {
			return false, err
		}
		if first {
			before, first = current, false
		}
		switch {
		case current != before && current != "":
			r.name = current
			r.finish(mine)
			return false, nil
		case mine:
			return true, nil
		}
		if err := pause(ctx, turnLook); err != nil {
			return false, err
		}
	}
}

// take takes or keeps the turn. A command that was left behind may come to the server
// after the turn was given back, and take it again for nobody: it is given back again.
func (r *rebuilding) take(ctx context.Context) (mine bool, current string, err error) {
	reply, err := redisconn.Run(ctx, r.authority.run, func(ctx context.Context) ([]any, error) {
		return turnScript.Run(ctx, r.rdb, []string{r.names.Record(), r.names.Rebuild()},
			r.inc.header, r.token, turnLife.Milliseconds()).Slice()
	}, func([]any, error) {
		if r.finished.Load() {
			r.pass()
		}
	})
	if err != nil {
		return false, "", err
	}
	kind, rest, err := parseReply(reply, 1, 1)
	if err != nil {
		return false, "", err
	}
	return kind == "mine", rest[0], nil
}

func (s *shared) guess() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// finish ends the turn, if it is ours. Also after a success, which has ended it: tend
// may have renewed it once more since.
func (r *rebuilding) finish(mine bool) {
	r.finished.Store(true)
	if mine {
		r.pass()
	}
}

// pass gives the turn back. Should that fail, others wait until it ends by itself.
func (r *rebuilding) pass() {
	_, _ = redisconn.Run(context.Background(), r.authority.run, func(ctx context.Context) (int, error) {
		return passScript.Run(ctx, r.rdb, []string{r.names.Rebuild()}, r.token, r.names.Channel(), r.token).Int()
	}, nil)
}

// awaitChange waits until this process answers from a generation that is not older,
// but not for ever: Redis may fail at any time, and then it abstains.
func (s *shared) awaitChange(ctx context.Context, name string) {
	timer := time.NewTimer(catchUp)
	defer timer.Stop()
	wake(s.asked)
	for {
		s.mu.Lock()
		r, changed := s.replica, s.changed
		s.mu.Unlock()
		if r != nil && r.name == name {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

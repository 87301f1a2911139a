package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// Check checks whether the group can work with its Redis: whether Redis replies as a master
// of version 6.2 or later, lets the client run each of the group's commands and receive its
// messages, has the replicas for Options.WaitReplicas, and has an eviction policy that spares
// the keys of other applications. Check runs the commands on a key of its own, which it
// deletes. In a cluster it checks all masters but runs the commands on one.
//
// The error matches ErrUnavailable if Redis cannot be used, but not if a promise is only
// weaker. Check takes some milliseconds; if Redis does not reply, some seconds, or until ctx
// ends. Without Redis it returns nil.
func (g *Group) Check(ctx context.Context) error {
	if g.redis == nil {
		return nil
	}
	found := redisconn.Check(ctx, g.rdb, redisconn.Reads)
	var rights redisconn.Checkup
	broken := found.Broken
	if broken == nil {
		rights = g.redis.tryRights(ctx, g.rdb)
		broken = rights.Broken
	}
	if broken == nil {
		broken = g.redis.tryScripts(ctx, g.rdb)
	}
	if broken != nil {
		return g.redis.unavailable(ctx, "check", nil, errors.Join(broken, rights.Weak))
	}
	unheard := rights.Weak
	if unheard == nil {
		unheard = g.msgs.arrive(ctx)
	}
	if unheard != nil {
		unheard = fmt.Errorf("other processes keep in memory what this one changes, and this one what they change, for up to Local.TTL: %w", unheard)
	}
	if err := errors.Join(found.Weak, unheard, g.redis.tryReplicas(ctx)); err != nil {
		return fmt.Errorf("mutexrebuild: check of %q: %v", g.space.Name, err)
	}
	return nil
}

// tryRights runs each command that the scripts use, and GETRANGE outside of a script.
func (s *store) tryRights(ctx context.Context, rdb redis.UniversalClient) redisconn.Checkup {
	key := s.key("levee-check-" + newToken())
	c := redisconn.Rights(ctx, rdb, checkScript, redisconn.Call{Keys: []string{key}, Args: []any{s.channel}},
		s.channel, keys.Heartbeat(newToken()))
	_, err := redisconn.Step(ctx, func(ctx context.Context) (string, error) { return rdb.GetRange(ctx, key, 0, 64).Result() })
	if err != nil {
		c.Broken = errors.Join(c.Broken, fmt.Errorf("GETRANGE: %w", err))
	}
	return c
}

// tryScripts runs the scripts on the keys of an id of its own, to check that they reply on
// this server as they should.
func (s *store) tryScripts(ctx context.Context, rdb redis.UniversalClient) error {
	id := "levee-check-" + newToken()
	both, lease, ms := s.keys(id), s.keys(id)[1:], s.lease.Milliseconds()
	first, second, third, hold := newToken(), newToken(), newToken(), newToken()
	try := func(script *redisconn.Script, names []string, args ...any) redisconn.Reply {
		reply, err := redisconn.Step(ctx, func(ctx context.Context) (redisconn.Reply, error) {
			return script.Run(ctx, rdb, redisconn.Call{Keys: names, Args: args}), nil
		})
		return redisconn.ReplyOr(reply, err)
	}
	wake, gone := s.message(wakeUp, id), s.message(invalidated, id)
	for _, step := range []struct {
		name   string
		script *redisconn.Script
		keys   []string
		args   []any
		want   string // how the reply begins
	}{
		{"begin", beginScript, both, []any{first, ms, ask, "", 64}, "[granted"},
		{"begin", beginScript, both, []any{second, ms, ask, "", 64}, "[wait"},
		{"renew", renewScript, lease, []any{first, ms}, "1"},
		{"commit", commitScript, both, []any{first, "x", 1000, s.channel, wake}, "1"},
		{"begin", beginScript, both, []any{second, ms, drop, "", 64}, "[granted"},
		{"commit", commitScript, both, []any{second, "x", 1000, s.channel, gone}, "1"},
		{"invalidate", invalidateScript, both, []any{hold, 1000, "", s.channel, gone, 0}, "0"},
		{"begin", beginScript, both, []any{second, ms, ask, "", 64}, "[held"},
		{"invalidate", invalidateScript, both, []any{"", 0, hold, s.channel, gone, 1000}, "0"},
		{"begin", beginScript, both, []any{third, ms, ask, "", 64}, "[granted"},
		{"begin", beginScript, both, []any{second, ms, ask, "", 64}, "[wait"},
		{"abort", abortScript, lease, []any{third, s.channel, wake}, "1"},
	} {
		reply, err := try(step.script, step.keys, step.args...).Result()
		if err != nil {
			return fmt.Errorf("script %s: %w", step.name, err)
		}
		if got := fmt.Sprint(reply); !strings.HasPrefix(got, step.want) {
			return fmt.Errorf("script %s replied %.60q", step.name, got)
		}
	}
	// On the cache's own key: the script changes nothing in it, but creates a missing one.
	reply, err := try(epochScript, []string{s.names.Clears()}, "look", 0, 0, 0, maxLife.Milliseconds(), "", "").List()
	if err == nil {
		_, err = s.parseEpoch(reply)
	}
	if err != nil {
		return fmt.Errorf("script epoch with the key %q: %w", s.names.Clears(), err)
	}
	return nil
}

// TryReplicas returns an error that matches ErrTooFewReplicas if fewer replicas than
// Options.WaitReplicas confirm a command without effect, and another one if Redis does not reply.
func (g *Group) TryReplicas(ctx context.Context) error {
	if g.redis == nil {
		return nil
	}
	return g.redis.tryReplicas(ctx)
}

// tryReplicas invalidates an id that no process uses, and returns an error if fewer replicas than
// Options.WaitReplicas confirm it in their usual time.
func (s *store) tryReplicas(ctx context.Context) error {
	if s.waitFor == 0 {
		return nil
	}
	id := "levee-check-" + newToken()
	_, errs := s.evalConfirmed(ctx, invalidateScript, nil, redisconn.Call{
		Keys: s.keys(id), Args: []any{"", 0, "", s.channel, s.message(invalidated, id), 0},
	})
	if errs[0] != nil {
		return fmt.Errorf("WaitReplicas: %w", errs[0])
	}
	return nil
}

// hearTime is how long arrive waits for the first heartbeat.
const hearTime = 3 * time.Second

// arrive waits until messages arrive, for up to hearTime. Its error says why they do not.
func (s *subscription) arrive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, hearTime)
	defer cancel()
	for looks := (wait.Backoff{First: time.Millisecond, Max: 50 * time.Millisecond}); !s.link.Live(); {
		if looks.Sleep(ctx); ctx.Err() != nil {
			if cause := s.cause.Load(); cause != nil {
				return fmt.Errorf("no messages arrive: %w", *cause)
			}
			return errors.New("no messages arrive")
		}
	}
	return nil
}

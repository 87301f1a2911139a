package lock

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// A journal logs what was survived and may interest an operator. Each kind of
// event is logged every ten seconds at the most, with how many were not: a Redis
// that is gone fails the renewals of ten thousand leases three times a lease.
type journal struct {
	mu     sync.Mutex // guards what follows
	kinds  map[string]*seen
	looked bool // at the server's settings
	copies bool // at its replicas
}

// A seen is what happened with one kind of event.
type seen struct {
	again  time.Time // when it may be logged next
	silent int       // how many were not logged since the last
}

const logEvery = 10 * time.Second

// note logs an event, unless one of its kind was logged just now. It may be called
// with any mutex held, since it leaves the work to a goroutine.
func (j *journal) note(log *slog.Logger, level slog.Level, what string, args ...any) {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	k := j.kinds[what]
	if k == nil {
		if j.kinds == nil {
			j.kinds = map[string]*seen{}
		}
		k = &seen{}
		j.kinds[what] = k
	}
	if now.Before(k.again) {
		k.silent++
		return
	}
	if k.silent > 0 {
		args = append(args, "unlogged", k.silent)
	}
	*k = seen{again: now.Add(logEvery)}
	go log.Log(context.Background(), level, "lock: "+what, args...)
}

// shown is a name as it stands in a log: it may have come from anywhere.
func shown(name string) slog.Attr { return slog.String("name", fmt.Sprintf("%.100q", name)) }

func (h *hold) noteLoss(cause error) {
	h.k.journal.note(h.log, slog.LevelWarn, "a lease was lost", shown(h.name), "cause", cause, "held", time.Since(h.taken))
}

func (h *hold) noteFailure(err error, remaining time.Duration) {
	h.k.journal.note(h.log, slog.LevelWarn, "a renewal failed and is tried again", shown(h.name), "error", err, "remaining", remaining)
}

// noteDeaf tells that grants are not heard, which costs nothing but time.
func (c *core) noteDeaf(log *slog.Logger) {
	c.journal.note(log, slog.LevelWarn, "no messages from Redis, waiters ask every 250ms")
}

// advise looks once, at the first lock that was taken, whether the server is one to
// keep locks in, and once whether it has the replicas that are asked for. Nobody
// waits for it, and a user who may not ask (ACL) hears nothing.
func (c *core) advise(o *Options) {
	j := c.journal
	j.mu.Lock()
	settings, copies := !j.looked, !j.copies && o.Replicas > 0
	j.looked, j.copies = true, j.copies || copies
	j.mu.Unlock()
	if settings {
		c.background(func(ctx context.Context) error {
			for _, info := range c.store.info(ctx, "memory") {
				if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" && info["maxmemory"] != "0" {
					j.note(o.Logger, slog.LevelWarn, "this Redis may evict locks, use one with maxmemory-policy noeviction", "policy", policy)
				}
			}
			return nil
		})
	}
	if copies {
		c.background(func(ctx context.Context) error {
			for _, info := range c.store.info(ctx, "replication") {
				if info["role"] == "master" && info["connected_slaves"] == "0" {
					j.note(o.Logger, slog.LevelWarn, "this Redis has no replicas, but Options.Replicas asks for some", "replicas", o.Replicas)
				}
			}
			return nil
		})
	}
}

// fields returns the lines of an INFO by their names.
func fields(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			all[name] = value
		}
	}
	return all
}

package lock

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/levee-go/levee/internal/logonce"
)

func (h *hold) noteLoss(cause error) {
	h.k.journal.To(h.log).Warn("a lease was lost", logonce.Name("name", h.name), "cause", cause, "held", time.Since(h.taken))
}

func (h *hold) noteFailure(err error, remaining time.Duration) {
	h.k.journal.To(h.log).Warn("a renewal failed and is tried again", logonce.Name("name", h.name), "error", err, "remaining", remaining)
}

// noteDeaf tells that grants are not heard, which costs nothing but time.
func (c *core) noteDeaf(log *slog.Logger) {
	c.journal.To(log).Warn("no messages from Redis, waiters ask every 250ms")
}

// advise looks once, at the first lock that was taken, whether the server is one to
// keep locks in, and once whether it has the replicas that are asked for. Nobody
// waits for it, and a user who may not ask (ACL) hears nothing.
func (c *core) advise(o *Options) {
	if !c.looked.Swap(true) {
		c.background(func(ctx context.Context) error {
			for _, info := range c.store.info(ctx, "memory") {
				if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" && info["maxmemory"] != "0" {
					c.journal.To(o.Logger).Warn("this Redis may evict locks, use one with maxmemory-policy noeviction", "policy", policy)
				}
			}
			return nil
		})
	}
	if o.Replicas > 0 && !c.copies.Swap(true) {
		c.background(func(ctx context.Context) error {
			for _, info := range c.store.info(ctx, "replication") {
				if info["role"] == "master" && info["connected_slaves"] == "0" {
					c.journal.To(o.Logger).Warn("this Redis has no replicas, but Options.Replicas asks for some", "replicas", o.Replicas)
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

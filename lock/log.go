package lock

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/levee-go/levee/internal/logonce"
)

func (w *watchdog) logLoss(g *grant, cause error) {
	w.log.To(g.logger).Warn("a lease was lost", logonce.Name("name", g.name), "cause", cause, "held", time.Since(g.taken))
}

func (w *watchdog) logFailure(g *grant, err error, remaining time.Duration) {
	w.log.To(g.logger).Warn("a renewal failed and is tried again", logonce.Name("name", g.name), "error", err, "remaining", remaining)
}

// logNoMessages says that grants are not heard, which costs nothing but time.
func (l *locker) logNoMessages(logger *slog.Logger) {
	l.log.To(logger).Warn("no messages from Redis, waiters ask every 250ms")
}

// adviseOnce looks, after the first lock that was taken, whether the server is one to
// keep locks in, and after the first with Replicas whether it has any. Nobody waits
// for it, and a user whom an ACL forbids to ask hears nothing.
func (l *locker) adviseOnce(o *Options) {
	if !l.checkedServer.Swap(true) {
		l.advise("memory", func(settings map[string]string) {
			policy := settings["maxmemory_policy"]
			if policy != "" && policy != "noeviction" && settings["maxmemory"] != "0" {
				l.log.To(o.Logger).Warn("this Redis may evict locks, use one with maxmemory-policy noeviction", "policy", policy)
			}
		})
	}
	if o.Replicas > 0 && !l.checkedReplicas.Swap(true) {
		l.advise("replication", func(settings map[string]string) {
			if settings["role"] == "master" && settings["connected_slaves"] == "0" {
				l.log.To(o.Logger).Warn("this Redis has no replicas, but Options.Replicas asks for some", "replicas", o.Replicas)
			}
		})
	}
}

// advise looks at a section of INFO, in the background.
func (l *locker) advise(section string, look func(settings map[string]string)) {
	l.background(func(ctx context.Context) error {
		look(l.redis.settings(ctx, section))
		return nil
	})
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

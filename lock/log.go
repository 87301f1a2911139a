package lock

import (
	"context"
	"log/slog"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
)

// tell calls a hook for a grant, and logs its panic.
func tell(log *logonce.Log, g *grant, hook func()) {
	contain.Call(func() error { hook(); return nil }, func(err error) {
		if err != nil {
			log.To(g.o.Logger).Warn("a hook panicked", "error", err)
		}
	})
}

func (l *locker) tellAcquired(g *grant, wait time.Duration, contended bool) {
	if g.o.Hooks.Acquired != nil {
		tell(l.log, g, func() { g.o.Hooks.Acquired(g.name, wait, contended) })
	}
}

func (w *watchdog) logLoss(g *grant, cause error) {
	w.log.To(g.o.Logger).Warn("a lease was lost", logonce.Name("name", g.name), "cause", cause, "held", time.Since(g.taken))
}

func (w *watchdog) logFailure(g *grant, err error, remaining time.Duration) {
	w.log.To(g.o.Logger).Warn("a renewal failed and is tried again", logonce.Name("name", g.name), "error", err, "remaining", remaining)
}

func (l *locker) logUnlock(g *grant, err error) {
	l.log.To(g.o.Logger).Warn("an Unlock was not confirmed and goes on in the background", logonce.Name("name", g.name), "error", err)
}

// logNoMessages logs that messages of grants do not arrive, which costs only time.
func (l *locker) logNoMessages(logger *slog.Logger) {
	l.log.To(logger).Warn("no messages from Redis, waiters poll every 250ms")
}

// adviseOnce warns, after the first lock that was taken, if the server may evict keys, and
// after the first with Replicas, if it has no replicas. It looks in the background, and is
// silent if an ACL forbids INFO.
func (l *locker) adviseOnce(o *Options) {
	if l.rdb == nil {
		return
	}
	if !l.checkedServer.Swap(true) {
		l.advise("memory", func(memory map[string]string) {
			if redisconn.Evicting(memory, redisconn.Scripts) != nil {
				l.log.To(o.Logger).Warn("this Redis may evict locks, use one with maxmemory-policy noeviction", "policy", memory["maxmemory_policy"])
			}
		})
	}
	if o.Replicas > 0 && !l.checkedReplicas.Swap(true) {
		l.advise("replication", func(replication map[string]string) {
			if replication["role"] == "master" && replication["connected_slaves"] == "0" {
				l.log.To(o.Logger).Warn("this Redis has no replicas, but Options.Replicas is set", "replicas", o.Replicas)
			}
		})
	}
}

// advise calls look with a section of INFO, in the background.
func (l *locker) advise(section string, look func(info map[string]string)) {
	l.background(func(ctx context.Context) error {
		info, err := redisconn.Info(ctx, l.rdb, section)
		if err == nil {
			look(info)
		}
		return err
	})
}

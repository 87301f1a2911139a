package lock

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
)

var (
	//go:embed scripts/begin.lua
	beginLua string
	//go:embed scripts/state.lua
	stateLua string
	//go:embed scripts/queue.lua
	queueLua string
	//go:embed scripts/acquire.lua
	acquireLua string
	//go:embed scripts/release.lua
	releaseLua string
	//go:embed scripts/leave.lua
	leaveLua string
	//go:embed scripts/renew.lua
	renewLua string
	//go:embed scripts/inspect.lua
	inspectLua string

	acquireScript = compose(acquireLua)
	releaseScript = compose(releaseLua)
	leaveScript   = compose(leaveLua)
	renewScript   = redis.NewScript(renewLua)
	inspectScript = redis.NewScript(inspectLua)
)

// compose makes a whole script of one that works on a lock's state and queue.
func compose(text string) *redis.Script {
	text = strings.Replace(text, "-- include state.lua\n", stateLua, 1)
	return redis.NewScript(beginLua + strings.Replace(text, "-- include queue.lua\n", queueLua, 1))
}

// A mode is a way to take a lock, as the scripts know it.
type mode string

const (
	exclusive mode = "m"
	once      mode = "o"
	write     mode = "w"
	read      mode = "r"
	permit    mode = "p"
)

// arg is the mode as an argument, which costs no allocation as a constant.
func (m mode) arg() any {
	switch m {
	case exclusive:
		return "m"
	case once:
		return "o"
	case write:
		return "w"
	case read:
		return "r"
	}
	return "p"
}

// flag is a condition as an argument.
func flag(on bool) any {
	if on {
		return "1"
	}
	return "0"
}

// A target is a lock and the way to take it.
type target struct {
	name   string
	keys   []string
	mode   mode
	places int // permits of a semaphore, else 1
}

func newTarget(prefix string, kind keys.LockKind, name string, m mode) target {
	return target{name: name, keys: keys.Lock(prefix, kind, name), mode: m, places: 1}
}

func (t *target) record() string { return t.keys[0] }

// A reply is what a script answered.
type reply struct {
	what  string
	n     [4]int64
	acked int       // replicas that know of it
	sent  time.Time // before the command left this process
}

// A server runs the scripts: one Redis, or for a Quorum several. Each method
// returns when ctx ends, and what comes later is for late.
type server interface {
	acquire(ctx context.Context, t *target, b bid, late func(reply, error)) (reply, error)
	release(ctx context.Context, t *target, owner string, fence, ends int64, abandon bool, keep time.Duration) (string, error)
	leave(ctx context.Context, t *target, entry string) error
	renew(ctx context.Context, h *hold, lease time.Duration, raise int64, heir string) (reply, error)
	renewMany(ctx context.Context, due []*hold, terms []time.Duration) []outcome
	inspect(ctx context.Context, t *target) (Info, error)
	info(ctx context.Context, section string) []map[string]string // of each node; none if it does not say
}

// A bid asks for a lock.
type bid struct {
	owners   []string
	entry    string // "" not to wait
	turn     int64
	more     bool
	lease    time.Duration
	label    string
	replicas int
	timeout  time.Duration // for the replicas
}

// An outcome is a reply or an error.
type outcome struct {
	reply
	err error
}

func (r *reply) parse(value any) error {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	if len(list) == 0 || len(list) > 1+len(r.n) {
		return fmt.Errorf("unexpected answer %.100q", value)
	}
	switch what := list[0].(type) {
	case string:
		r.what = what
	case int64:
		r.n[0] = what
	default:
		return fmt.Errorf("unexpected answer %.100q", value)
	}
	for i, v := range list[1:] {
		r.n[i] = number(v)
	}
	return nil
}

func number(v any) int64 {
	n, _ := v.(int64)
	return n
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

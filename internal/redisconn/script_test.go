package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

// echo returns its argument and counts its runs in the key. "bad" is an error.
var echo = redisconn.NewScript(echoText)

const echoText = `
	if ARGV[1] == "bad" then return redis.error_reply("BAD argument") end
	redis.call("INCR", KEYS[1])
	return ARGV[1]`

func echoes(n int, key func(i int) string) (calls []redisconn.Call) {
	for i := range n {
		calls = append(calls, redisconn.Call{Keys: []string{key(i)}, Args: []any{fmt.Sprint(i)}})
	}
	return calls
}

// conn returns a Conn that a busy machine does not take for a server that hangs.
func conn(rdb redis.UniversalClient) *redisconn.Conn { return redisconn.New(rdb, 20*time.Second, 100) }

func own(i int) string { return fmt.Sprint("k", i) }

// wantEchoes checks that each call has its own reply and has run once.
func wantEchoes(t *testing.T, rdb redis.UniversalClient, calls []redisconn.Call, replies []redisconn.Reply) {
	t.Helper()
	if len(replies) != len(calls) {
		t.Fatalf("got %d replies, want %d", len(replies), len(calls))
	}
	for i, reply := range replies {
		if got, err := reply.Text(); err != nil || got != fmt.Sprint(i) {
			t.Errorf("call %d: got %q, %v", i, got, err)
		}
		if n, err := rdb.Get(t.Context(), calls[i].Keys[0]).Int(); err != nil || n != 1 {
			t.Errorf("call %d ran %d times, %v, want once", i, n, err)
		}
	}
}

func TestEvalRunsEachCallOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	for _, n := range []int{1, 2, 100} {
		for _, known := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d calls, script known %v", n, known), func(t *testing.T) {
				do(t, s, "FLUSHALL")
				do(t, s, "SCRIPT", "FLUSH")
				if known {
					rdb.ScriptLoad(t.Context(), echoText)
				}
				calls := echoes(n, own)
				wantEchoes(t, rdb, calls, conn(rdb).Eval(t.Context(), echo, calls, nil))
			})
		}
	}
	if replies := conn(rdb).Eval(t.Context(), echo, nil, nil); len(replies) != 0 {
		t.Errorf("no calls: got %d replies, want none", len(replies))
	}
}

func TestEvalOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t)
	c.Replicate()
	rdb := c.Client(t)
	// In the second round the text of the script is for those calls alone that met a
	// server without it. To run the others again would do everything twice.
	t.Run("only the calls of nodes without the script are repeated", func(t *testing.T) {
		for known := range len(c.Nodes) + 1 {
			for _, node := range c.Nodes {
				do(t, node, "FLUSHALL")
				do(t, node, "SCRIPT", "FLUSH")
			}
			for _, node := range c.Nodes[:known] {
				node.Client(t).ScriptLoad(t.Context(), echoText)
			}
			calls := echoes(60, own)
			wantEchoes(t, rdb, calls, conn(rdb).Eval(t.Context(), echo, calls, nil))
		}
	})
	t.Run("EvalAndWait asks the node of the keys", func(t *testing.T) {
		for i := range 10 {
			calls := echoes(3, func(n int) string { return fmt.Sprintf("{%d}:%d", i, n) })
			replies, confirmed, err := conn(rdb).EvalAndWait(t.Context(), echo, calls, redisconn.Confirm{Replicas: 1, Within: 10 * time.Second})
			if confirmed != 1 || err != nil {
				t.Errorf("got %d confirmations, %v, want 1", confirmed, err)
			}
			wantEchoes(t, rdb, calls, replies)
		}
	})
	// Catches one that asks the former owner until the cluster client looks by itself, a minute later:
	// a lock that is renewed like this was lost in a cluster where everything works.
	t.Run("EvalAndWait finds a slot that has moved", func(t *testing.T) {
		call := redisconn.Call{Keys: []string{"moves"}, Args: []any{"x"}}
		run := func() bool {
			replies, confirmed, err := conn(rdb).EvalAndWait(t.Context(), echo, []redisconn.Call{call}, redisconn.Confirm{Replicas: 1, Within: 10 * time.Second})
			return err == nil && redisconn.FirstError(replies) == nil && confirmed == 1
		}
		if !run() {
			t.Fatal("it does not run before the slot moves")
		}
		owner := c.Owner("moves")
		for _, node := range c.Masters() {
			if node != owner {
				c.Move("moves", node)
				break
			}
		}
		redistest.Eventually(t, 10*time.Second, "it runs at the new owner", run)
	})
}

// WAIT counts what its connection has written, and so waits beside a script that the server did not know too.
// Catches a second attempt that waits as long as the first one.
func TestEvalAndWaitWaitsOnceForAScriptThatIsNotKnown(t *testing.T) {
	t.Parallel()
	master, _ := replicated(t)
	rdb := master.Client(t)
	want := redisconn.Confirm{Replicas: 2, Within: time.Second} // there is one
	lag, began := redistest.MeasureLag(t), time.Now()
	do(t, master, "SCRIPT", "FLUSH")
	replies, confirmed, err := conn(rdb).EvalAndWait(t.Context(), echo, echoes(1, own), want)
	took := time.Since(began)
	began = time.Now()
	_, _, _ = conn(rdb).EvalAndWait(t.Context(), echo, echoes(1, own), want)
	if known := time.Since(began); took > lag.Allow(known+want.Within/2) || confirmed != 1 || errors.Join(err, redisconn.FirstError(replies)) != nil {
		t.Errorf("it took %v and %v where the script is known; %d confirmed, %v", took, known, confirmed, err)
	}
}

func TestEachCallHasItsOwnError(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t, func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
	calls := echoes(3, own)
	calls[1].Args[0] = "bad"
	for range 2 { // without the script, and with it
		replies := conn(rdb).Eval(t.Context(), echo, calls, nil)
		for i, reply := range replies {
			if bad := redis.HasErrorPrefix(reply.Err(), "BAD argument"); bad != (i == 1) {
				t.Errorf("call %d: got %v", i, reply.Err())
			}
		}
		if err := redisconn.FirstError(replies); !redis.HasErrorPrefix(err, "BAD argument") {
			t.Errorf("FirstError: got %v", err)
		}
		if err := redisconn.FirstError(replies[:1]); err != nil {
			t.Errorf("FirstError: got %v, want nil", err)
		}
	}
	s.Kill()
	for i, reply := range conn(rdb).Eval(t.Context(), echo, calls, nil) {
		if reply.Err() == nil {
			t.Errorf("call %d of a server that is gone: got no error", i)
		}
	}
}

// replicated returns a server with a replica that follows it.
func replicated(t *testing.T) (master, replica *redistest.Server) {
	master, replica = redistest.Start(t), redistest.Start(t)
	host, port, _ := strings.Cut(master.Addr(), ":")
	do(t, replica, "REPLICAOF", host, port)
	rdb := master.Client(t)
	redistest.Eventually(t, 30*time.Second, "the replica follows", func() bool {
		return rdb.Wait(t.Context(), 1, 100*time.Millisecond).Val() == 1
	})
	return master, replica
}

func TestEvalAndWaitSaysHowManyReplicasConfirmed(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	rdb := master.Client(t)
	for _, n := range []int{1, 10} {
		do(t, master, "FLUSHALL")
		do(t, master, "SCRIPT", "FLUSH")
		calls := echoes(n, own)
		replies, confirmed, err := conn(rdb).EvalAndWait(t.Context(), echo, calls, redisconn.Confirm{Replicas: 1, Within: 10 * time.Second})
		if confirmed != 1 || err != nil {
			t.Errorf("got %d confirmations, %v, want 1", confirmed, err)
		}
		wantEchoes(t, rdb, calls, replies)
		wantEchoes(t, replica.Client(t), calls, replies) // confirmed: it is there
	}
	replica.Stop()
	defer replica.Cont()
	// A timeout that rounds to 0 would be no timeout at all.
	for _, timeout := range []time.Duration{0, time.Microsecond, 50 * time.Millisecond} {
		replies, confirmed, err := conn(rdb).EvalAndWait(t.Context(), echo, echoes(1, own), redisconn.Confirm{Replicas: 1, Within: timeout})
		if confirmed != 0 || err != nil || redisconn.FirstError(replies) != nil {
			t.Errorf("with a frozen replica: got %d confirmations, %v, %v, want 0", confirmed, err, redisconn.FirstError(replies))
		}
	}
	if err := redisconn.TooFew(0, 1); !errors.Is(err, redisconn.ErrTooFewReplicas) || !strings.Contains(err.Error(), "0 of 1") {
		t.Errorf("TooFew: got %v", err)
	}
}

func TestEvalAndWaitOfAServerThatIsGone(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t, func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
	s.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, confirmed, err := conn(rdb).EvalAndWait(ctx, echo, echoes(2, own), redisconn.Confirm{Replicas: 1, Within: time.Second})
	if confirmed != 0 || err == nil {
		t.Errorf("got %d confirmations, %v, want an error", confirmed, err)
	}
}

// go-redis follows a few redirections and then returns the last one. Evals of slots that
// move must not end with it: an invalidation would report an error, and nothing has failed.
//
// Catches an Eval that asks again only where the script is not known.
func TestARedirectionAtTheEndOfTheClientsPatienceIsAskedAgain(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, redirection := range []string{"MOVED 1 127.0.0.1:1", "ASK 1 127.0.0.1:1", "TRYAGAIN Multiple keys request during rehashing of slot"} {
		for _, n := range []int{1, 10} {
			do(t, s, "FLUSHALL")
			rdb := s.Client(t)
			rdb.AddHook(&refusesEach{once: map[string]bool{}, text: redirection})
			calls := echoes(n, own)
			wantEchoes(t, s.Client(t), calls, conn(rdb).Eval(t.Context(), echo, calls, nil))
		}
	}
}

// refusesEach answers the first command for each key with an error of Redis.
type refusesEach struct {
	redistest.EachCommand // for its DialHook
	text                  string
	mu                    sync.Mutex
	once                  map[string]bool // the keys that it has refused
}

func (h *refusesEach) refuses(cmd redis.Cmder) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	args := cmd.Args()
	if len(args) < 4 || h.once[fmt.Sprint(args[3])] {
		return false
	}
	h.once[fmt.Sprint(args[3])] = true
	cmd.SetErr(serverError(h.text))
	return true
}

func (h *refusesEach) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.refuses(cmd) {
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

func (h *refusesEach) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		kept := slices.DeleteFunc(slices.Clone(cmds), h.refuses)
		if len(kept) == 0 {
			return nil
		}
		return next(ctx, kept)
	}
}

// serverError is an error that Redis replies with.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

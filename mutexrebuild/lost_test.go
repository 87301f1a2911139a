package mutexrebuild_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/mutexrebuild"
)

// A lostRig is a group behind a proxy that loses replies. Its client either asks
// again, as go-redis does by default, or not.
type lostRig struct {
	*rig
	p     *redistest.FaultProxy
	g     *group // behind the proxy
	other *group // not behind it
}

func lost(t *testing.T, asksAgain bool, o opts) *lostRig {
	r := onServer(t)
	p := redistest.Proxy(t, r.server.Addr())
	rdb := p.Client(t, func(o *redis.Options) {
		o.ReadTimeout = 100 * time.Millisecond
		if !asksAgain {
			o.MaxRetries, o.ReadTimeout = -1, 5*time.Second
		}
	})
	if o.RedisTimeout == 0 {
		o.RedisTimeout = 3 * time.Second
	}
	l := &lostRig{rig: r, p: p, g: r.with(rdb, o), other: r.group(opts{})}
	r.eventually("messages arrive", l.g.Live)
	// The server knows the scripts, so that each operation is one command.
	r.want(l.other, "warm", "v", gives("v"))
	r.must(l.other.Invalidate(r.ctx, "warm"))
	r.must(set(r.ctx, l.other, "warm", "v"))
	_, _ = rebuild(r.ctx, l.other, "cold", fails(errSource))
	return l
}

// The lease was granted, and the reply lost. With SET NX the client's second try finds
// the lease taken, by itself, and waits until it ends.
func TestALeaseWhoseReplyWasLostIsRecognizedAsOurs(t *testing.T) {
	l := lost(t, true, opts{})
	l.p.CutReplies(1, "EVALSHA")
	began := time.Now()
	l.loads(l.g, "x", "v")
	l.Logf("the rebuild took %v", time.Since(began))
	l.took(began, 100*time.Millisecond, "the rebuild")
	if l.stored("x") != "v" {
		l.Errorf("Redis has %q", l.stored("x"))
	}
	l.checkStats(l.g, "of the rebuild", func(s stats) bool { return s.Waits == 0 && s.Unknown == 0 })
}

// If the client does not ask again, the lease may be ours or not. It is given back:
// left alone it would hold the next caller up for three seconds.
func TestALeaseThatMayBeOursIsGivenBack(t *testing.T) {
	for name, lose := range map[string]func(p *redistest.FaultProxy){
		"reset":  func(p *redistest.FaultProxy) { p.CutReplies(1, "EVALSHA") },
		"silent": func(p *redistest.FaultProxy) { p.DropReplies(1, "EVALSHA") },
		"nonsense": func(p *redistest.FaultProxy) {
			p.RewriteReplies(1, "EVALSHA", func([]byte) []byte { return []byte("*1\r\n$5\r\nwhat?\r\n") })
		},
		"empty": func(p *redistest.FaultProxy) {
			p.RewriteReplies(1, "EVALSHA", func([]byte) []byte { return []byte("*0\r\n") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			const timeout = 300 * time.Millisecond
			l := lost(t, false, opts{RedisTimeout: timeout})
			lose(l.p)
			began := time.Now()
			l.loads(l.g, "x", "v")
			l.Logf("the rebuild took %v of a timeout of %v", time.Since(began), timeout)
			l.took(began, timeout+150*time.Millisecond, "the rebuild")
			if l.stored("x") != "" {
				l.Errorf("Redis has %q", l.stored("x"))
			}
			l.checkStats(l.g, "it went on without an answer", func(s stats) bool { return s.Unknown == 1 })
			began = time.Now()
			l.want(l.other, "x", "v", gives("v"))
			l.took(began, 0, "the next load")
		})
	}
}

// A command that reaches the server only after its caller has left, and after the lease
// was given back to be sure, grants it all the same. It is given back again.
func TestALeaseThatIsGrantedTooLateIsGivenBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.with(r.client(), opts{RedisTimeout: 50 * time.Millisecond})
		r.eventually("messages arrive", g.Live)
		r.want(g, "warm", "v", gives("v"))
		var first atomic.Bool
		r.mini.Before(func(command string, _ []string) {
			if command == "EVALSHA" && first.CompareAndSwap(false, true) {
				time.Sleep(200 * time.Millisecond)
			}
		})
		began := time.Now()
		r.want(g, "x", "v", gives("v"))
		r.took(began, 50*time.Millisecond, "to go on without an answer")
		time.Sleep(200 * time.Millisecond)
		if r.rdb.Exists(r.ctx, leaseKey("x")).Val() > 0 {
			r.Error("the lease stands and has no holder")
		}
	})
}

// The lease is granted during an outage, when this process asks Redis for nothing. It is
// given back at the end of the outage. Without waiting for that, it would hold others up
// for the rest of its three seconds.
func TestALeaseThatIsGrantedDuringAnOutageIsGivenBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.with(r.client(), opts{RedisTimeout: 50 * time.Millisecond})
		r.eventually("messages arrive", g.Live)
		r.want(g, "warm", "v", gives("v"))
		reads, begin := make(chan struct{}), make(chan struct{})
		var first atomic.Bool
		r.mini.Before(func(command string, args []string) {
			switch {
			case command == "EVALSHA" && first.CompareAndSwap(false, true):
				<-begin
			case isRead(command, args) && args[0] != valueKey("x"):
				<-reads
			}
		})
		r.loads(g, "x", "v")
		for i := range 3 {
			r.loads(g, fmt.Sprint(i), "v")
		}
		r.checkStats(g, "there is an outage", func(s stats) bool { return s.Outage })
		close(begin)
		synctest.Wait()
		if r.rdb.Exists(r.ctx, leaseKey("x")).Val() == 0 {
			r.Fatal("the lease is not granted: this tests nothing")
		}
		close(reads)
		r.eventually("the outage is over", func() bool { return !g.Stats().Outage })
		synctest.Wait()
		if r.rdb.Exists(r.ctx, leaseKey("x")).Val() > 0 {
			r.Error("the lease stands and has no holder")
		}
	})
}

// unhurried is for tests whose next command has to be the one that they are about, and not a
// renewal, on a busy machine too.
var unhurried = opts{Lease: time.Minute, RedisTimeout: 20 * time.Second}

// Where it is unknown whether a value was published, callers from before the load take
// it, and those who joined during the load look for themselves.
func TestAPublicationWhoseReplyWasLost(t *testing.T) {
	t.Run("asked again", func(t *testing.T) {
		l := lost(t, true, unhurried)
		db, at := newSource(), newGate()
		db.write("x", "v")
		var got string
		first := l.do(l.g, "x", db.gated("x", at), &got)
		<-at.reached
		l.p.CutReplies(1, "EVALSHA")
		close(at.open)
		first.mustBe(l.rig, nil)
		if got != "v" || l.stored("x") != "v" {
			l.Errorf("got %q, Redis has %q", got, l.stored("x"))
		}
		l.checkStats(l.g, "it was confirmed", func(s stats) bool { return s.Unknown == 0 && s.Refused == 0 })
	})
	t.Run("not asked again", func(t *testing.T) {
		l := lost(t, false, opts{Lease: time.Minute, RedisTimeout: 3 * time.Second})
		db, at := newSource(), newGate()
		db.write("x", "v")
		var a, b string
		first := l.do(l.g, "x", db.gated("x", at), &a)
		<-at.reached
		second := l.do(l.g, "x", db.gated("x", at), &b)
		l.joined(l.g, "x", 2)
		l.p.DropReplies(1, "EVALSHA")
		close(at.open)
		l.eventually("it is published", func() bool { return l.stored("x") == "v" })
		l.lay("x", "newer")
		first.mustBe(l.rig, nil)
		second.mustBe(l.rig, nil)
		if a != "v" || b != "newer" || db.loaded("x") != 1 {
			l.Errorf("the first caller got %q, the one who joined %q, after %d loads", a, b, db.loaded("x"))
		}
		l.checkStats(l.g, "it was not confirmed", func(s stats) bool { return s.Unknown == 1 })
	})
	// The reply to a refusal is lost, and the client asks again: what it finds is
	// not its own.
	t.Run("of a refusal", func(t *testing.T) {
		l := lost(t, true, unhurried)
		db, at := newSource(), newGate()
		db.write("x", "old")
		var got string
		first := l.do(l.g, "x", db.gated("x", at), &got)
		<-at.reached
		db.write("x", "new")
		l.must(l.other.Invalidate(l.ctx, "x"))
		l.p.CutReplies(1, "EVALSHA")
		close(at.open)
		first.mustBe(l.rig, nil)
		if got != "new" || l.stored("x") != "new" {
			l.Errorf("got %q, Redis has %q", got, l.stored("x"))
		}
	})
	// Between the publication and its repetition somebody has invalidated the
	// value: the repetition must not bring it back.
	t.Run("and invalidated since", func(t *testing.T) {
		l := lost(t, true, unhurried)
		db, at := newSource(), newGate()
		db.write("x", "old")
		var got string
		first := l.do(l.g, "x", db.gated("x", at), &got)
		<-at.reached
		held, cut := l.p.HoldAndCut("EVALSHA") // of all connections, another one would be tried, and be gone too
		close(at.open)
		<-held
		db.write("x", "new")
		l.must(l.other.Invalidate(l.ctx, "x"))
		cut()
		first.mustBe(l.rig, nil)
		if got != "new" || l.stored("x") != "new" {
			l.Errorf("got %q, Redis has %q", got, l.stored("x"))
		}
	})
}

// A renewal may be lost, the next one comes through.
func TestARenewalMayBeLost(t *testing.T) {
	l, lag := lost(t, false, opts{Lease: 3 * time.Second, RedisTimeout: 500 * time.Millisecond}), redistest.MeasureLag(t)
	db := newSource()
	db.write("x", "v")
	first := l.do(l.g, "x", db.load("x", 4200*time.Millisecond), nil)
	l.eventually("the lease is taken", func() bool { return db.loaded("x") == 1 })
	l.p.DropReplies(1, "EVALSHA")
	second := l.do(l.other, "x", db.load("x", 0), nil)
	first.mustBe(l.rig, nil)
	second.mustBe(l.rig, nil)
	switch late := lag.Allow(0); { // on a busy machine the next renewal may be lost too
	case db.loaded("x") == 1:
	case late > 500*time.Millisecond:
		l.Logf("%d loads, where an operation may take %v longer", db.loaded("x"), late)
	default:
		l.Errorf("%d loads", db.loaded("x"))
	}
}

func TestAWriteWhoseReplyWasLost(t *testing.T) {
	for name, write := range writes {
		t.Run(name+", asked again", func(t *testing.T) {
			l := lost(t, true, opts{})
			l.want(l.other, "x", "old", gives("old"))
			l.p.CutReplies(1, "EVALSHA")
			l.must(write(l.ctx, l.g))
			l.want(l.g, "x", "v", gives("v"))
		})
		// Nobody may be told that it is done: the command could have been lost, not
		// the reply.
		t.Run(name+", not asked again", func(t *testing.T) {
			l := lost(t, false, opts{RedisTimeout: 5 * time.Second})
			l.want(l.other, "x", "old", gives("old"))
			l.p.CutReplies(1, "EVALSHA")
			if err := write(l.ctx, l.g); !errors.Is(err, mutexrebuild.ErrUnavailable) {
				l.Errorf("got %v, want ErrUnavailable", err)
			}
			l.must(write(l.ctx, l.g))
			l.want(l.g, "x", "v", gives("v"))
		})
	}
}

// Without an answer to the read there may be a value or not: that is no miss, and
// nothing is published.
func TestAReadWithoutAnAnswerIsNotAMiss(t *testing.T) {
	for name, lose := range map[string]func(p *redistest.FaultProxy){
		"reset":  func(p *redistest.FaultProxy) { p.CutReplies(1, "GETRANGE "+valueKey("x")) },
		"silent": func(p *redistest.FaultProxy) { p.DropReplies(1, "GETRANGE "+valueKey("x")) },
		"error": func(p *redistest.FaultProxy) {
			p.RewriteReplies(1, "GETRANGE "+valueKey("x"), func([]byte) []byte { return []byte("-READONLY no\r\n") })
		},
		"noise": func(p *redistest.FaultProxy) {
			p.RewriteReplies(1, "GETRANGE "+valueKey("x"), func([]byte) []byte { return []byte("\x00\xff\r\n") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := lost(t, false, opts{RedisTimeout: 250 * time.Millisecond}) // with more a read that is silent is sent again
			l.want(l.other, "x", "v", gives("v"))
			lose(l.p)
			l.loads(l.g, "x", "w")
			if l.stored("x") != "v" {
				l.Errorf("Redis has %q", l.stored("x"))
			}
			l.checkStats(l.g, "it went on without an answer", func(s stats) bool { return s.Unknown == 1 })
		})
	}
}

package redisconn_test

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

// A link that is reset comes back at once, but what was published meanwhile is
// lost. Without the gap nobody would know, and without a heartbeat at its beginning
// it would not be live for another second.
func TestEveryNewLinkReportsAGap(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	control := s.Client(t)
	l, _ := listen(t, open(t, s.Client(t)), "news")
	l.await(30*time.Second, 1, "live")
	const most, quick = 20, 700 * time.Millisecond
	quickest := time.Hour
	for i := 0; i < most && (i < 5 || quickest > quick); i++ { // a busy machine may be late with some of them
		gaps, began := len(l.heard("gap")), time.Now()
		if err := control.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		l.await(30*time.Second, gaps+1, "gap")
		message := strconv.Itoa(i)
		publish(t, control, "news", message)
		l.await(30*time.Second, 1, message)
		l.await(30*time.Second, i+2, "live")
		if lost := len(l.heard("dead")); lost != i+1 {
			t.Errorf("the loss of the link was told %d times, want %d", lost, i+1)
		}
		quickest = min(quickest, l.last("live").Sub(began))
	}
	if quickest > quick {
		t.Errorf("each of %d new links was live after %v and more", most, quickest)
	}
}

// The link's packets disappear, as behind a firewall that has forgotten it:
// nothing tells the client. Without the heartbeats it stays deaf until TCP gives
// up, a quarter of an hour later.
func TestASilentLinkIsNoticedAndReplaced(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	h := open(t, p.Client(t))
	l, _ := listen(t, h, "news")
	l.await(30*time.Second, 1, "live")
	gaps := len(l.heard("gap"))

	p.BlackholeOld()
	began := time.Now()
	l.await(30*time.Second, 1, "dead")
	if took := l.last("dead").Sub(began); took > 8*time.Second {
		t.Errorf("the silence was noticed after %v", took)
	}
	l.await(30*time.Second, gaps+1, "gap")
	if took := l.last("gap").Sub(began); took > 10*time.Second {
		t.Errorf("the channel was subscribed again after %v", took)
	}
	publish(t, s.Client(t), "news", "x")
	l.await(30*time.Second, 1, "x")
	l.await(30*time.Second, 2, "live")
	t.Logf("noticed after %v, subscribed again after %v, live after %v",
		l.last("dead").Sub(began), l.last("gap").Sub(began), l.last("live").Sub(began))
	if took := l.last("live").Sub(began); took > 20*time.Second {
		t.Errorf("the new link was live after %v", took)
	}
	if !h.Live() {
		t.Error("Live does not agree")
	}
}

// A client without timeouts waits for ever for a connection that has gone silent.
// One heartbeat that hangs must not be the last.
func TestAHeartbeatThatHangsForGoodDoesNotEndTheHeartbeats(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	rdb := p.Client(t, func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -1, -1 })
	l, _ := listen(t, open(t, rdb), "news")
	l.await(30*time.Second, 1, "live")
	p.BlackholeOld()
	began := time.Now()
	l.await(30*time.Second, 1, "dead")
	l.await(30*time.Second, 2, "live")
	t.Logf("live after %v", l.last("live").Sub(began))
}

// Messages that come are no proof that all come: only the heartbeat says that
// what this client publishes, it hears.
func TestMessagesDoNotStandInForHeartbeats(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb, other := m.Client(t), m.Client(t)
		h := open(t, rdb)
		l, _ := listen(t, h, "news")
		l.await(time.Second, 1, "live")

		var mute atomic.Bool
		m.Before(func(command string, args []string) {
			if mute.Load() && command == "PUBLISH" && args[0] != "news" {
				time.Sleep(10 * time.Second)
			}
		})
		time.Sleep(1500 * time.Millisecond) // the last beat was half a second ago
		mute.Store(true)
		began := time.Now()
		time.Sleep(2 * time.Second)
		publish(t, other, "news", "x")
		l.await(30*time.Second, 1, "dead")
		if silent := l.last("dead").Sub(began); silent > 3*time.Second {
			t.Errorf("it was live for %v without a heartbeat", silent)
		}
		mute.Store(false)
		l.await(time.Minute, 2, "live")
	})
}

// While there is no link, Subscribe does not wait and nothing is forgotten.
func TestSubscriptionsChangeWhileTheLinkIsDown(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	control := s.Client(t)
	h := open(t, p.Client(t))
	kept, _ := listen(t, h, "kept")
	_, endOld := listen(t, h, "old")
	kept.await(30*time.Second, 1, "live")

	p.Refuse(true)
	p.Cut()
	kept.await(30*time.Second, 1, "dead")
	kept.forget()
	lag, began := redistest.MeasureLag(t), time.Now()
	fresh, _ := listen(t, h, "fresh")
	endOld()
	short, endShort := listen(t, h, "short")
	endShort()
	if took := time.Since(began); took > lag.Allow(2*time.Second) {
		t.Errorf("to subscribe without a link took %v", took)
	}
	time.Sleep(50 * time.Millisecond) // some attempts to connect

	p.Refuse(false)
	kept.await(30*time.Second, 1, "gap")
	fresh.await(30*time.Second, 1, "gap")
	kept.await(30*time.Second, 1, "live")
	for channel, want := range map[string]int64{"kept": 1, "fresh": 1, "old": 0, "short": 0} {
		if n := publish(t, control, channel, "x"); n != want {
			t.Errorf("%q has %d subscribers, want %d", channel, n, want)
		}
	}
	kept.await(30*time.Second, 1, "x")
	fresh.await(30*time.Second, 1, "x")
	if short.heard("gap", "x") != nil {
		t.Errorf("who left heard %q", short.heard("gap", "x"))
	}
}

// A server that is away for long is asked again and again, but not all the time,
// and the first attempt after its return is not far.
func TestAServerThatIsAwayIsTriedWithPatience(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l, _ := listen(t, open(t, s.Client(t)), "news")
	l.await(30*time.Second, 1, "live")
	s.Kill()
	l.await(30*time.Second, 1, "dead")
	time.Sleep(time.Second)
	s.Restart()
	lag, began := redistest.MeasureLag(t), time.Now()
	l.await(30*time.Second, 2, "live")
	if took := time.Since(began); took > lag.Allow(8*time.Second) {
		t.Errorf("it took %v", took)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	for name, damage := range map[string]func(s *redistest.Server){
		"healthy": func(*redistest.Server) {},
		"gone":    func(s *redistest.Server) { s.Kill() },
		"frozen":  func(s *redistest.Server) { s.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			before := goleak.IgnoreCurrent()
			rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: 300 * time.Millisecond, DialTimeout: 300 * time.Millisecond})
			defer rdb.Close()
			h := redisconn.OpenLink(rdb)
			l, _ := listen(t, h, "news")
			l.await(30*time.Second, 1, "live")
			second := redisconn.OpenLink(rdb)
			h.Close()
			if damage(s); name == "healthy" {
				publish(t, rdb, "news", "x")
				l.await(30*time.Second, 1, "x") // the other user's share stands
			}
			began := time.Now()
			second.Close()
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("Close took %v", took)
			}
			if name == "frozen" {
				s.Cont()
			}
			_ = rdb.Close()
			goleak.VerifyNone(t, before)
		})
	}
}

// A link that never found its server has goroutines too.
func TestCloseBeforeTheFirstLink(t *testing.T) {
	before := goleak.IgnoreCurrent()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	for range 20 {
		h := redisconn.OpenLink(rdb)
		h.Subscribe("news", redisconn.Subscriber{})
		h.Close()
	}
	_ = rdb.Close()
	goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// Opening and closing by many at once leaves one link at a time and none at the
// end. Run it with the race detector.
func TestOpenAndCloseByMany(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	done := make(chan struct{})
	for range 8 {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 25 {
				h := redisconn.OpenLink(rdb)
				heard := make(chan struct{}, 1)
				unsubscribe := h.Subscribe("news", redisconn.Subscriber{Gap: func() {
					select {
					case heard <- struct{}{}:
					default:
					}
				}})
				<-heard
				unsubscribe()
				h.Close()
			}
		}()
	}
	for range 8 {
		<-done
	}
	redistest.Eventually(t, 20*time.Second, "no link is left", func() bool { return links(t, s.Client(t)) == 0 })
}

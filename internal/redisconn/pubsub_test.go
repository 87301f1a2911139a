package redisconn_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

func TestMessagesArriveInOrder(t *testing.T) {
	everywhere(t, func(t *testing.T, newClient func() *redis.Client) {
		l, _ := listen(t, open(t, newClient()), "news")
		l.await(5*time.Second, 1, "gap")
		var want []string
		other := newClient()
		for i := range 300 {
			want = append(want, strconv.Itoa(i))
			publish(t, other, "news", want[i])
		}
		l.await(10*time.Second, 1, "299")
		if got := l.heard(want...); !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
	})
}

func TestAMessageGoesToTheSubscribersOfItsChannel(t *testing.T) {
	everywhere(t, func(t *testing.T, newClient func() *redis.Client) {
		h := open(t, newClient())
		a, _ := listen(t, h, "a")
		alsoA, _ := listen(t, h, "a")
		b, _ := listen(t, h, "b")
		for _, l := range []*listener{a, alsoA, b} {
			l.await(5*time.Second, 1, "gap")
		}
		other := newClient()
		publish(t, other, "a", "to a")
		publish(t, other, "b", "to b")
		a.await(5*time.Second, 1, "to a")
		alsoA.await(5*time.Second, 1, "to a")
		b.await(5*time.Second, 1, "to b")
		if b.heard("to a") != nil || a.heard("to b") != nil {
			t.Error("a message came to a channel that is not its own")
		}
	})
}

// What was published before Gap may be lost; what is published after it is not.
func TestAfterItsGapASubscriberHearsEverything(t *testing.T) {
	everywhere(t, func(t *testing.T, newClient func() *redis.Client) {
		h, other := open(t, newClient()), newClient()
		for i := range 50 {
			channel := strconv.Itoa(i)
			l, unsubscribe := listen(t, h, channel)
			l.await(5*time.Second, 1, "gap")
			if n := publish(t, other, channel, "x"); n != 1 {
				t.Errorf("after the gap the message goes to %d subscribers", n)
			}
			l.await(5*time.Second, 1, "x")
			unsubscribe()
		}
	})
}

// The later of two subscribers of a channel has a gap of its own: it cannot know
// what came before.
func TestEverySubscriptionBeginsWithAGap(t *testing.T) {
	everywhere(t, func(t *testing.T, newClient func() *redis.Client) {
		h := open(t, newClient())
		first, _ := listen(t, h, "news")
		first.await(5*time.Second, 1, "gap")
		second, _ := listen(t, h, "news")
		second.await(5*time.Second, 1, "gap")
	})
}

// Without the beat at the start of a link this takes a second.
func TestANewLinkIsLiveAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		began := time.Now()
		h := open(t, m.Client(t))
		l, _ := listen(t, h, "news")
		l.await(time.Second, 1, "live")
		if took := time.Since(began); took > 10*time.Millisecond || !h.Live() {
			t.Errorf("it took %v; live: %v", took, h.Live())
		}
	})
}

func TestALinkThatStandsStaysLiveAndHasNoGaps(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		h := open(t, m.Client(t))
		l, _ := listen(t, h, "news")
		l.await(time.Second, 1, "live")
		gaps := len(l.heard("gap"))
		time.Sleep(time.Hour)
		if !h.Live() || l.heard("dead") != nil || len(l.heard("gap")) != gaps {
			t.Errorf("live: %v, heard %q", h.Live(), l.heard("live", "dead", "gap"))
		}
	})
}

func TestAClientHasOneLinkHoweverManyUseIt(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, control := s.Client(t), s.Client(t)
	var all []*listener
	for range 10 {
		h := open(t, rdb)
		if h != redisconn.OpenLink(rdb) {
			t.Fatal("one client has two links")
		}
		h.Close() // the second Open's
		l, _ := listen(t, h, "news")
		all = append(all, l)
	}
	for _, l := range all {
		l.await(5*time.Second, 1, "gap")
	}
	if n := links(t, control); n != 1 {
		t.Errorf("the server has %d subscription links, want 1", n)
	}
	if n := publish(t, control, "news", "x"); n != 1 {
		t.Errorf("the server sent the message %d times, want once", n)
	}
	for _, l := range all {
		l.await(5*time.Second, 1, "x")
	}
	other := open(t, s.Client(t))
	l, _ := listen(t, other, "news")
	l.await(5*time.Second, 1, "gap")
	if n := links(t, control); n != 2 {
		t.Errorf("with a second client the server has %d links, want 2", n)
	}
}

func TestUnsubscribeEndsTheSubscriptionWithItsLastUser(t *testing.T) {
	everywhere(t, func(t *testing.T, newClient func() *redis.Client) {
		h, control := open(t, newClient()), newClient()
		first, endFirst := listen(t, h, "news")
		second, endSecond := listen(t, h, "news")
		first.await(5*time.Second, 1, "gap")
		second.await(5*time.Second, 1, "gap")

		endFirst()
		publish(t, control, "news", "one")
		second.await(5*time.Second, 1, "one")
		if first.heard("one") != nil {
			t.Error("it still hears")
		}
		endSecond()
		redistest.Eventually(t, 5*time.Second, "nobody listens", func() bool {
			return publish(t, control, "news", "two") == 0
		})
		third, _ := listen(t, h, "news")
		third.await(5*time.Second, 1, "gap")
		publish(t, control, "news", "three")
		third.await(5*time.Second, 1, "three")
		endFirst() // a second call does nothing
		publish(t, control, "news", "four")
		third.await(5*time.Second, 1, "four")
		if first.heard("three") != nil {
			t.Error("the first hears again")
		}
	})
}

// A subscriber need not care for everything.
func TestEachFunctionMayBeNil(t *testing.T) {
	everywhere(t, func(t *testing.T, newClient func() *redis.Client) {
		h, other := open(t, newClient()), newClient()
		h.Subscribe("news", redisconn.Subscriber{})
		l, _ := listen(t, h, "news")
		l.await(5*time.Second, 1, "live")
		l.await(5*time.Second, 1, "gap")
		publish(t, other, "news", "x")
		l.await(5*time.Second, 1, "x")
	})
}

// A wrapper around a client is a client too, and may hold what cannot be the key
// of a map: a field of such a type, or such a value in an interface. To use it as
// a key anyway panics.
func TestAClientNeedNotBeComparable(t *testing.T) {
	type withSlice struct {
		redis.UniversalClient
		_ []int
	}
	type withAny struct {
		redis.UniversalClient
		extra any
	}
	everywhere(t, func(t *testing.T, newClient func() *redis.Client) {
		for _, rdb := range []redis.UniversalClient{
			withSlice{UniversalClient: newClient()}, withAny{newClient(), []int{1}},
		} {
			a, b := redisconn.OpenLink(rdb), redisconn.OpenLink(rdb)
			l, _ := listen(t, a, "news")
			m, _ := listen(t, b, "news")
			l.await(5*time.Second, 1, "gap")
			m.await(5*time.Second, 1, "gap")
			a.Close()
			publish(t, rdb, "news", "x")
			m.await(5*time.Second, 1, "x")
			b.Close()
		}
	})
}

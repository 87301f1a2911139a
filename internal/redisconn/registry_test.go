package redisconn_test

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

// A Conn of a client that cannot be the key of a map has an Outage of its own, and ends
// it. To use such a client as a key panics.
func TestAConnOfAClientThatIsNotComparableSharesNothing(t *testing.T) {
	type withSlice struct {
		redis.UniversalClient
		_ []int
	}
	type withAny struct {
		redis.UniversalClient
		extra any
	}
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		plain := m.Client(t)
		for _, rdb := range []redis.UniversalClient{withSlice{UniversalClient: plain}, withAny{plain, []int{1}}} {
			one, two := redisconn.Open(rdb, opTimeout, 1, nil), redisconn.Open(rdb, opTimeout, 1, nil)
			if one.Outage() == two.Outage() {
				t.Error("they share an Outage")
			}
			one.Close()
			if two.Outage().Missed("k", io.EOF, true); two.Outage().Down() {
				t.Error("one read without an answer has opened the circuit")
			}
			two.Close()
		}
	})
}

// Opening and closing by many at once must neither hand out an Outage that has ended
// nor end one that is in use. Run it with the race detector.
func TestConnsAreOpenedAndClosedByMany(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		clients := []*redis.Client{m.Client(t), m.Client(t)}
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				for n := range 100 {
					c := redisconn.Open(clients[(i+n)%2], opTimeout, 1, nil)
					for !c.Outage().Down() { // only an Outage in use begins to probe
						c.Outage().Missed("k", io.EOF, true)
					}
					if !c.Outage().WaitUp(t.Context(), time.Minute) {
						t.Error("the circuit stays open")
					}
					c.Close()
				}
			})
		}
		all.Wait()
	})
}

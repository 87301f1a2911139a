package lock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// The real scripts do what the model does, on random ways.
func TestTheScriptsDoWhatTheModelDoes(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := context.Background()
	all := steps()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	ways := redistest.Pick(150, 5000)
	for way := range ways {
		tgt := newTarget("", keys.Mutex, fmt.Sprint(way), exclusive)
		w := &world{m: &model{}}
		var log []string
		var turns [processes]int64
		var stores [processes]*store
		var last int64
		for i := range stores {
			stores[i] = newStore(rdb, fmt.Sprintf("p%d", i))
		}
		for len(log) < 25 {
			s := all[random.IntN(len(all))]
			before := w.clone()
			taken, wrong := w.do(s)
			if wrong != "" {
				t.Fatal(wrong)
			}
			if !taken {
				continue
			}
			log = append(log, fmt.Sprint(s))
			owner := w.clients[s.p].owner
			switch s.name {
			case "lock", "lock more", "try", "poll":
				b := bid{owners: []string{owner}, lease: time.Hour, more: s.name == "lock more", turn: turns[s.p]}
				if s.name != "try" {
					b.entry = entryOf(s.p)
				}
				r, err := stores[s.p].acquire(ctx, &tgt, b, nil)
				if err != nil {
					t.Fatal(err)
				}
				again, err := stores[s.p].acquire(ctx, &tgt, b, nil) // as a client does that got no reply
				if err != nil || r.what != again.what || r.what == "granted" && r.n[0] != again.n[0] {
					t.Fatalf("seed %d, %v: %v, asked again %v, %v", seed, log, r, again, err)
				}
				want := "busy"
				if w.clients[s.p].holds {
					want = "granted"
				}
				if r.what == "granted" && r.n[0] <= last {
					t.Fatalf("%v: fence %d after %d", log, r.n[0], last)
				}
				if r.what == "granted" {
					last = r.n[0]
					// The short way does not note that a holder lives, which says nothing
					// until it stands in the queue again.
					if w.m.alive[s.p] {
						rdb.ZAdd(ctx, tgt.keys[2], redis.Z{Member: fmt.Sprintf("p%d", s.p), Score: 1e15})
						rdb.PExpire(ctx, tgt.keys[2], time.Hour)
					}
				}
				if r.what != want && (r.what != "gone" || w.m.released != owner) {
					t.Fatalf("seed %d, %v: %s, want %s", seed, log, r.what, want)
				}
				if r.what == "granted" || r.what == "busy" && s.name != "try" {
					turns[s.p] = r.n[2]
				}
			case "leave":
				if err := stores[s.p].leave(ctx, &tgt, entryOf(s.p)); err != nil {
					t.Fatal(err)
				}
				turns[s.p] = 0
			case "unlock":
				what, err := stores[s.p].release(ctx, &tgt, owner, last, 0, false, 0)
				if err != nil {
					t.Fatal(err)
				}
				if before.clients[s.p].holds && what != "ok" {
					t.Fatalf("seed %d, %v: %s", seed, log, what)
				}
			case "end":
				rdb.HSet(ctx, tgt.record(), "x", 1)
			case "dead":
				rdb.ZAdd(ctx, tgt.keys[2], redis.Z{Member: fmt.Sprintf("p%d", s.p), Score: 1})
			}
			for p, alive := range w.m.alive {
				if score := rdb.ZScore(ctx, tgt.keys[2], fmt.Sprintf("p%d", p)).Val(); score > 1 != alive {
					t.Fatalf("seed %d, %v: the life of p%d is %v, the model's %v", seed, log, p, score, alive)
				}
			}
			gotOwner := rdb.HGet(ctx, tgt.record(), "o").Val()
			gotQueue := rdb.ZRange(ctx, tgt.keys[1], 0, -1).Val()
			if gotOwner != w.m.owner || !slices.Equal(gotQueue, w.m.queue) && len(gotQueue)+len(w.m.queue) > 0 {
				t.Fatalf("seed %d, %v: the script has %q, %v, the model %q, %v", seed, log, gotOwner, gotQueue, w.m.owner, w.m.queue)
			}
		}
	}
	everyKeyEnds(t, rdb)
}

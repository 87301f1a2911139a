package cache_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
)

func takes(d time.Duration) func(context.Context, int64) error {
	return func(context.Context, int64) error { time.Sleep(d); return nil }
}

// readers ask one key again and again until stop is called.
func readers(r *rig, caches []*probe[int64, string], n int, check func(value string, err error)) (stop func()) {
	ctx, cancel := context.WithCancel(r.ctx)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			for ctx.Err() == nil {
				check(caches[i%len(caches)].Get(r.ctx, 1))
				time.Sleep(time.Millisecond)
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// Each flight of 64 readers would load for itself while a write of two seconds holds
// their key: some hundred loads a second, on the key that the database is busy with.
// With what one of them has loaded kept in the local tier, it is one a second and process.
func TestAHotKeyIsLoadedAboutOnceASecondWhileItIsWritten(t *testing.T) {
	cells := []cell{{redis: "mini", local: true}, {redis: "real", local: true}, {redis: "none", local: true}}
	inCells(t, cells, func(r *rig) {
		source := newRows(r, 1)
		source.slowly(takes(5 * time.Millisecond))
		caches := []*probe[int64, string]{open(r, source.source())}
		if r.rdb != nil {
			caches = append(caches, open(r, source.source()))
		}
		stop := readers(r, caches, 16, func(value string, err error) {
			if err != nil || value != "v1" && value != "v2" {
				r.Errorf("%q, %v", value, err)
			}
		})
		before := source.loads(1)
		err := caches[0].Write(r.ctx, []int64{1}, func(context.Context) error {
			time.Sleep(1500 * time.Millisecond)
			source.put(1, "v2")
			time.Sleep(500 * time.Millisecond)
			return nil
		})
		if err != nil {
			r.Error(err)
		}
		loads := source.loads(1) - before
		for _, c := range caches {
			c.comesTo(r, 1, "v2")
		}
		stop()
		// Of the first load, and of those after one and two seconds, each process may
		// have one: a copy lives for a second less Jitter, and that of one who asks at
		// the end once more.
		if most := 4 * len(caches); loads > most {
			r.Errorf("%d loads in two seconds, want %d at most", loads, most)
		}
	})
}

func TestAHotKeyIsLoadedAboutOnceASecondWhileReplicasLag(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "real", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		source.slowly(takes(5 * time.Millisecond))
		c := open(r, source.source(), func(o *cache.Options) { o.ReplicaLag = 2 * time.Second })
		if err := c.Invalidate(r.ctx, 1); err != nil {
			r.Fatal(err)
		}
		began := time.Now()
		stop := readers(r, []*probe[int64, string]{c}, 16, func(value string, err error) {
			if err != nil || value != "v1" && (value != "v2" || time.Since(began) < time.Second) {
				r.Errorf("%q, %v", value, err)
			}
		})
		time.Sleep(1500 * time.Millisecond)
		source.put(1, "v2") // comes to the replica
		// The local tier takes nothing for the last 50 ms.
		time.Sleep(time.Until(began.Add(1900 * time.Millisecond)))
		loads, most := source.loads(1), 3+int(time.Since(began)/time.Second) // 4, or more if this comes late
		time.Sleep(time.Until(began.Add(3 * time.Second)))                   // the clock of the local tier is late where the process is
		c.gives(r, 1, "v2")
		stop()
		if loads > most {
			r.Errorf("%d loads, more than %d", loads, most)
		}
	})
}

// comesTo waits until key has this value: an invalidation by another process reaches the
// local tier by a message.
func (p *probe[K, V]) comesTo(r *rig, key K, want any) {
	r.Helper()
	r.eventually("the value is there", func() bool {
		got, err := p.Get(r.ctx, key)
		if err != nil {
			r.Errorf("Get(%v): %v", key, err)
		}
		return any(got) == want
	})
}

// What a reader has loaded beside a writer is in no local tier when Write returns, nor, once
// the message is there, in that of another process. Catches a fill that carries a mark from
// after the end of the hold, or that is not dropped by it: it would be served until 0.8
// seconds or more after the load. A machine that stands still may take as long, so up
// to 20 rows are tried and one of them has to show it.
func TestTheEndOfAHoldDropsWhatWasLoadedBesideIt(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "real", local: true}}, func(r *rig) {
		rows := upTo(1, 20)
		source := newRows(r, rows...)
		writer, other := open(r, source.source()), open(r, source.source())
		for _, id := range rows {
			kept := true
			began := time.Now()
			err := writer.Write(r.ctx, []int64{id}, func(context.Context) error {
				for _, c := range []*probe[int64, string]{writer, other} {
					c.gives(r, id, "v1")
					got, err := c.Fetch(r.ctx, id)
					if err != nil || got.Value != "v1" {
						r.Errorf("beside the writer: %+v, %v", got, err)
					}
					kept = kept && got.Tier == cache.TierLocal
				}
				source.put(id, "v2")
				return nil
			})
			if err != nil {
				r.Error(err)
			}
			writer.gives(r, id, "v2")
			other.comesTo(r, id, "v2")
			if took := time.Since(began); kept && took < 800*time.Millisecond {
				return
			}
		}
		r.Error("the local tiers did not keep what was loaded beside a writer, or no message ended it")
	})
}

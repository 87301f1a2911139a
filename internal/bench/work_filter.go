package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

var filters = workload{
	name:  "filter",
	title: "H. A filter in the process, 10 million ids",
	about: "Half of the ids asked for are in it. Nanoseconds an id, with 1 and with 16 goroutines on two processors, of the time that the process had a processor. " +
		"16 ids at a time is MayContainMany, and where there is no such call 16 ids one after the other. " +
		"One line is a floor: all bits of an id in one cache line, read as atomic words, with as much more memory as it takes to have the same rate of false positives; its hash has no secret. " +
		"bits-and-blooms stands behind an RWMutex.",
	contenders: []string{"levee", "bits-and-blooms", "one line"},
	reference:  "one line",
	columns: []column{
		counted("1 goroutine (ns)", "%.0f", "at1", true),
		counted("16 goroutines", "%.0f", "at16", true),
		counted("16 ids at a time, 1", "%.0f", "many1", true),
		counted("none in it, 1", "%.0f", "absent1", true),
		counted("false positives (%)", "%.2f", "false", false),
		counted("memory (MB)", "%.1f", "mb", false),
	},
	run: func(ctx context.Context, p *process) error {
		n := pick(p.Size, 10_000, 10_000_000, 10_000_000)
		before := heap()
		f, err := openFilter(p.Contender, n)
		if err != nil {
			return err
		}
		p.count("mb", float64(heap()-before)/1e6)
		for id := range n {
			f.Add(strconv.Itoa(id))
		}
		q := newQuestions(n, pick(p.Size, 1<<12, 1<<20, 1<<20))
		falsePositives := 0
		for i, id := range q.ids {
			switch may := f.MayContain(id); {
			case q.in[i] && !may:
				return fmt.Errorf("it denies %s, which is in it", id)
			case !q.in[i] && may:
				falsePositives++
			}
		}
		p.count("false", 100*float64(falsePositives)/float64(q.absent))
		span := pick(p.Size, 5*time.Millisecond, 300*time.Millisecond, time.Second)
		p.count("at1", askFilter(f, q.ids, 1, span))
		p.count("at16", askFilter(f, q.ids, 16, span))
		p.count("many1", askAtOnce(f, q.ids, 16, span))
		p.count("absent1", askFilter(f, q.onlyAbsent(), 1, span))
		return nil
	},
}

// questions are ids of which half are below n.
type questions struct {
	ids    []string
	in     []bool
	absent int
}

func newQuestions(n, many int) questions {
	rng := rand.New(rand.NewPCG(6, 7))
	var q questions
	for range many {
		id := rng.IntN(2 * n)
		q.ids, q.in = append(q.ids, strconv.Itoa(id)), append(q.in, id < n)
		if id >= n {
			q.absent++
		}
	}
	return q
}

func (q questions) onlyAbsent() []string {
	var ids []string
	for i, id := range q.ids {
		if !q.in[i] {
			ids = append(ids, id)
		}
	}
	return ids
}

// askFilter returns the nanoseconds an id that the process had its processors. Each goroutine asks, even if it comes late.
func askFilter(f filter, ids []string, goroutines int, span time.Duration) float64 {
	var all sync.WaitGroup
	var asked, passed atomic.Int64
	used, began := ownTime(), time.Now()
	for g := range goroutines {
		all.Go(func() {
			at, n, may := g*len(ids)/goroutines, 0, 0
			for ; n == 0 || n%1024 != 0 || time.Since(began) < span; n++ {
				if at++; at >= len(ids) {
					at = 0
				}
				if f.MayContain(ids[at]) {
					may++
				}
			}
			asked.Add(int64(n))
			passed.Add(int64(may)) // so that nothing is left out
		})
	}
	all.Wait()
	return float64(ownTime()-used) / float64(min(goroutines, runtime.GOMAXPROCS(0))) / float64(asked.Load())
}

// askAtOnce is askFilter for one goroutine that asks for some ids at a time.
func askAtOnce(f filter, ids []string, atOnce int, span time.Duration) float64 {
	ask := func(ids []string) (may int) {
		for _, id := range ids {
			if f.MayContain(id) {
				may++
			}
		}
		return may
	}
	if b, ok := f.(batchFilter); ok {
		ask = func(ids []string) (may int) {
			for _, one := range b.MayContainMany(ids) {
				if one {
					may++
				}
			}
			return may
		}
	}
	asked, passed := 0, 0
	used, began := ownTime(), time.Now()
	for at := 0; asked == 0 || asked%1024 != 0 || time.Since(began) < span; asked += atOnce {
		if at+atOnce > len(ids) {
			at = 0
		}
		passed += ask(ids[at : at+atOnce])
		at += atOnce
	}
	runtime.KeepAlive(passed) // so that nothing is left out
	return float64(ownTime()-used) / float64(asked)
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

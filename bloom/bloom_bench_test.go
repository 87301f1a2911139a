package bloom_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"

	upstream "github.com/bits-and-blooms/bloom/v3"

	"github.com/levee-go/levee/bloom"
)

// contender is a filter that goroutines share.
type contender struct {
	name string
	has  func(id string) bool
	add  func(id string)
}

const benchIDs = 10_000_000

// contenders holds 10 M ids in each, at 1 %.
var contenders = sync.OnceValue(func() []contender {
	ctx := context.Background()
	ours, err := bloom.New(bloom.Options{Capacity: benchIDs, Complete: true, MaxTransaction: -1})
	if err != nil {
		panic(err)
	}
	counting, err := bloom.New(bloom.Options{Capacity: benchIDs, Complete: true, Counting: true, MaxTransaction: -1})
	if err != nil {
		panic(err)
	}
	theirs := upstream.NewWithEstimates(benchIDs, 0.01)
	for i := range benchIDs {
		id := benchID(i)
		_, _ = ours.Add(ctx, id), counting.Add(ctx, id)
		theirs.AddString(id)
	}
	benched = ours
	var mu sync.RWMutex
	return []contender{
		{
			"levee",
			func(id string) bool { return ours.MayContain(ctx, id) },
			func(id string) { _ = ours.Add(ctx, id) },
		},
		{
			"RWMutex",
			func(id string) bool { mu.RLock(); defer mu.RUnlock(); return theirs.TestString(id) },
			func(id string) { mu.Lock(); defer mu.Unlock(); theirs.AddString(id) },
		},
		{
			"levee counting",
			func(id string) bool { return counting.MayContain(ctx, id) },
			func(id string) { _ = counting.Add(ctx, id) },
		},
	}
})

// A page of 100 ids in one call beside a call for each, in turn, of 10 M ids at 1 %:
//
//	go test -run '^$' -bench MayContainMany -benchtime 200ms ./bloom
func BenchmarkMayContainMany(b *testing.B) {
	contenders()
	ids := make([]string, 1<<18)
	for i := range ids {
		ids[i] = benchID(rand.IntN(2 * benchIDs))
	}
	ctx := context.Background()
	for round := range 10 {
		for name, ask := range map[string]func(page []string){
			"page": func(page []string) { benched.MayContainMany(ctx, page) },
			"each": func(page []string) {
				for _, id := range page {
					benched.MayContain(ctx, id)
				}
			},
		} {
			b.Run(fmt.Sprintf("%s/%d", name, round), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					ask(ids[i*100%(1<<18-100):][:100])
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/id")
			})
		}
	}
}

// benched is levee's among the contenders.
var benched *bloom.Filter

func benchID(i int) string { return "product:" + strconv.Itoa(10_000_000+i) }

// Against an RWMutex around the filter of bits-and-blooms, each in turn, 10 M ids
// at 1 %, 16 goroutines, half of the ids asked for are in it:
//
//	go test -run '^$' -bench MayContain -benchtime 200ms ./bloom
func BenchmarkMayContain(b *testing.B) {
	ids := make([]string, 1<<18) // more than caches hold positions of, read in order as if just made
	for i := range ids {
		ids[i] = benchID(rand.IntN(2 * benchIDs))
	}
	for _, adds := range []int{0, 5} {
		for round := range 10 {
			for _, c := range contenders() {
				b.Run(fmt.Sprintf("%d%% adds/%s/%d", adds, c.name, round), func(b *testing.B) {
					b.ReportAllocs()
					b.SetParallelism(max(1, 16/runtime.GOMAXPROCS(0)))
					b.RunParallel(func(pb *testing.PB) {
						for i := rand.IntN(len(ids)); pb.Next(); i++ {
							if id := ids[i%len(ids)]; i%100 < adds {
								c.add(id)
							} else {
								c.has(id)
							}
						}
					})
				})
			}
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	f := newFilter(b, bloom.Options{Capacity: benchIDs})
	ids := make([]string, 1<<18)
	for i := range ids {
		ids[i] = benchID(i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_ = f.Add(context.Background(), ids[i%len(ids)])
	}
}

func BenchmarkRebuild(b *testing.B) {
	f := newFilter(b, bloom.Options{Capacity: 1_000_000})
	for b.Loop() {
		if err := f.Rebuild(context.Background(), numbered(0, 1_000_000)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1e6, "ns/id")
}

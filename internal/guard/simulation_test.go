package guard

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// A world is a database, and processes that always have more to load than their limit allows.
// The database serves knee queries side by side, each as fast as if it were alone. More of them
// share what it can do, and lose a tenth of that for each further knee of them. It is simulated
// event by event, so that a minute of a thousand queries a second takes 50 ms.
type world struct {
	name       string
	knee, slow func(second float64) float64
	work       func(*rand.Rand) float64 // seconds of a query that is alone
	pauses     bool                     // it stands still for 200 ms of each 10 s
	cut        float64                  // seconds after which a query is given up; 0: never
	processes  int
	apart      float64 // seconds from the start of one process to that of the next, on average
	skew       float64 // seconds by which clocks are wrong at most
	from, end  float64 // of what is measured
}

// A limiter is the limit of one process.
type limiter interface {
	places(time.Time) int
	begun(now time.Time, running int) (member uint32)
	ended(member uint32, took time.Duration, says bool)
}

// A result is what became of a world.
type result struct {
	rate, p99     float64 // queries a second, and seconds of a query
	jain          float64 // of what processes did in the last 30 s
	limit         []int   // of all processes, in each second
	least, most   int     // of a process
	first, minute float64 // queries in the first 10 s, and in the second minute
}

type query struct {
	due     float64 // in the database's own time, which passes slower as it has more to do
	process int
	began   float64
	member  uint32
}

type queries []query

func (q queries) Len() int           { return len(q) }
func (q queries) Less(i, j int) bool { return q[i].due < q[j].due }
func (q queries) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queries) Push(x any)        { *q = append(*q, x.(query)) }
func (q *queries) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

// A run is a world in the making.
type run struct {
	world
	rng      *rand.Rand
	now, own float64
	running  queries
	limiters []limiter
	taken    []int
	skews    []float64
	took     []float64
	done     []float64 // by each process in the last 30 s
	result   result
}

func (w world) clock(process int, r *run) time.Time {
	return time.Unix(1_000_000, 0).Add(time.Duration((r.now + r.skews[process]) * float64(time.Second)))
}

// speed is how fast the database's own time passes.
func (r *run) speed() float64 {
	n, knee := float64(len(r.running)), r.knee(r.now)
	if r.pauses && math.Mod(r.now, 10) < 0.2 {
		return 1e-6
	}
	return min(1, knee/max(n, 1)) / (1 + 0.1*max(0, n/knee-1)) / r.slow(r.now)
}

// fill has a process begin what its limit allows.
func (r *run) fill(process int) {
	l, now := r.limiters[process], r.clock(process, r)
	for l != nil && r.taken[process] < l.places(now) {
		r.taken[process]++
		heap.Push(&r.running, query{r.own + r.work(r.rng), process, r.now, l.begun(now, r.taken[process])})
	}
}

// giveUp ends the queries that have taken too long.
func (r *run) giveUp() {
	late := func(q query) bool { return r.cut > 0 && r.now-q.began >= r.cut }
	for i := slices.IndexFunc(r.running, late); i >= 0; i = slices.IndexFunc(r.running, late) {
		q := heap.Remove(&r.running, i).(query)
		r.taken[q.process]--
		r.limiters[q.process].ended(q.member, time.Duration((r.now-q.began)*float64(time.Second)), false)
	}
}

// end ends the query that is due.
func (r *run) end() {
	q := heap.Pop(&r.running).(query)
	took := r.now - q.began
	r.taken[q.process]--
	r.limiters[q.process].ended(q.member, time.Duration(took*float64(time.Second)), true)
	switch {
	case r.now >= r.from:
		r.took = append(r.took, took)
	case r.now < 10:
		r.result.first++
	}
	if r.now >= 60 && r.now < 120 {
		r.result.minute++
	}
	if r.now >= r.world.end-30 {
		r.done[q.process]++
	}
	r.fill(q.process)
}

// simulate runs a world, whose processes get their limits from start.
func (w world) simulate(seed uint64, start func(process int) limiter) result {
	r := &run{
		world: w, rng: rand.New(rand.NewPCG(seed, 7)), limiters: make([]limiter, w.processes), taken: make([]int, w.processes),
		skews: make([]float64, w.processes), done: make([]float64, w.processes), result: result{least: math.MaxInt},
	}
	starts := make([]float64, w.processes)
	for i := range starts {
		starts[i] = float64(i) * w.apart * (0.5 + r.rng.Float64())
		r.skews[i] = w.skew * (2*r.rng.Float64() - 1)
	}
	for next := 0.0; r.now < w.end; {
		speed, step := r.speed(), next-r.now
		if len(r.running) > 0 && (r.running[0].due-r.own)/speed <= step {
			step = max(0, (r.running[0].due-r.own)/speed)
			r.now, r.own = r.now+step, r.running[0].due
			r.end()
			continue
		}
		r.now, r.own = next, r.own+step*speed
		r.giveUp()
		for i := range starts {
			if r.limiters[i] == nil && r.now >= starts[i] {
				r.limiters[i] = start(i)
			}
			r.fill(i)
		}
		if second := int(r.now + 1e-9); second >= len(r.result.limit) {
			r.note()
		}
		next += 0.005
	}
	return r.summary()
}

// note notes the limits of now.
func (r *run) note() {
	sum := 0
	for _, l := range r.limiters {
		n := 0
		switch l := l.(type) {
		case nil:
			continue
		case *trial:
			n = int(l.limit)
		case fixed:
			n = int(l)
		case *windowed:
			n = int(l.limit)
		}
		r.result.least, r.result.most = min(r.result.least, n), max(r.result.most, n)
		sum += n
	}
	r.result.limit = append(r.result.limit, sum)
}

func (r *run) summary() result {
	slices.Sort(r.took)
	r.result.rate = float64(len(r.took)) / (r.world.end - r.from)
	r.result.p99 = r.took[len(r.took)*99/100]
	r.result.jain = jain(r.done)
	return r.result
}

// jain is Jain's index of how equal shares are: 1 if all are, 1/n if one has everything.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, s := range shares {
		sum, squares = sum+s, squares+s*s
	}
	return sum * sum / squares / float64(len(shares))
}

// back is how many seconds after a moment the limits of all were at nine tenths of what they
// were on average in the 20 s before another; -1: never.
func (r result) back(before, after int) int {
	sum := 0
	for _, n := range r.limit[before-20 : before] {
		sum += n
	}
	for i, n := range r.limit[after:] {
		if float64(n) >= 0.9*float64(sum)/20 {
			return i
		}
	}
	return -1
}

// fixed is a limit that does not move.
type fixed int

func (f fixed) places(time.Time) int            { return int(f) }
func (fixed) begun(time.Time, int) uint32       { return 0 }
func (fixed) ended(uint32, time.Duration, bool) {}
func adapting(least, most int) func(int) limiter {
	return func(int) limiter { return newTrial(Options{MinConcurrent: least, MaxConcurrent: most}) }
}
func always(n int) func(int) limiter             { return func(int) limiter { return fixed(n) } }
func (w world) String() string                   { return fmt.Sprintf("%s, %d", w.name, w.processes) }
func constantly(x float64) func(float64) float64 { return func(float64) float64 { return x } }
func during(x, otherwise float64) func(float64) float64 {
	return func(second float64) float64 {
		if second >= 60 && second < 120 {
			return x
		}
		return otherwise
	}
}

// lognormal is what queries of one kind take, of which some take three times as long as others.
func lognormal(mean float64) func(*rand.Rand) float64 {
	const sigma = 0.5
	return func(r *rand.Rand) float64 { return mean * math.Exp(sigma*r.NormFloat64()-sigma*sigma/2) }
}

// mixed is one query in ten that takes ten times as long as the others, and all at random.
func mixed(mean float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 {
		if r.Float64() < 0.1 {
			return mean / 1.9 * 10 * r.ExpFloat64()
		}
		return mean / 1.9 * r.ExpFloat64()
	}
}

package guard

import (
	"math"
	"math/bits"
	"time"
)

// A trial finds how many functions the source can run at a time. Now and then it takes half of the
// places away for a moment. If functions are faster then, too many ran, by the same factor: a
// source that serves K at a time takes N/K times as long for N of them. If they are not faster,
// more may run. So a trial remembers nothing of how fast the source once was: a source that becomes
// slower, or always was slow, is as slow with half of the places, and keeps all of them. Nor can
// measurements under load mislead it, as they mislead limits that compare with the fastest or the
// average time of before (TCP Vegas, Brakmo and Peterson 1995; Gradient2 of Netflix/concurrency-limits).
//
// If one process of twenty halves its own share, it sees no difference. So all processes have their
// trials at the same moments, multiples of a power of two seconds by the clock: the whole fleet is
// tried at once, without messages. With unit = time between trials / 32, at least one and a half
// times what a function takes:
//
//	-3 … -1   functions that begin now form the group with all places
//	 0 …  3   half of the places are taken away, if all were in use before
//	 1 …  2   functions that begin now form the group with half of the places
//	 5        verdict: the mean logarithm of the first group's times less that of the second. A
//	          function counts for at most 3 units, also one that still runs
//
// Clocks may differ by half a unit, at least 16 ms. The limit falls by a factor and rises by a
// sum, so that the processes' shares become equal (Chiu and Jain 1989). A verdict rests on few
// functions, so a Kalman filter weighs it by their number and variance.
//
// The queue's mutex guards a trial. A nil trial leaves the limit as it is.
type trial struct {
	least, most float64 // MinConcurrent, MaxConcurrent
	limit       float64

	at     time.Time // moment 0 of the coming or present trial; zero: none
	unit   time.Duration
	number uint32
	groups [2]group // with all places, and with half of them

	logs    float64 // mean logarithm of the seconds that functions took
	samples int     // the number of functions in logs, up to known
	slower  float64 // filtered logarithm of the factor by which functions are slower with all places
	doubt   float64 // the variance of slower
	clean   int     // verdicts since the last one that lowered the limit
}

// A group is the functions that began in one part of a trial.
type group struct {
	begun, ended int
	cut          int     // how many of ended did not succeed
	sum, squares float64 // of the logarithms of the times that the ended ones took
}

// The simulation of this package's tests has found these numbers, and says what each of them is
// weighed against.
const (
	initial   = 8    // the first limit, or a quarter of MaxConcurrent if that is more
	known     = 128  // functions in the mean by which trials are timed
	cycle     = 32   // units from one trial to the next
	longCycle = 16   // the cycle if a unit is over longUnit, so that trials do not become too rare
	tolerated = 0.05 // the logarithm of a slowness that does not lower the limit
	drift     = 0.01 // variance added from one verdict to the next
	enough    = 2    // functions that began with all places in use: with fewer there is no trial
	certainty = 0.25 // standard deviations subtracted from slower before it lowers the limit
)

const longUnit = 200 * time.Millisecond

func newTrial(o Options) *trial {
	if o.MinConcurrent == 0 || o.MaxConcurrent < 0 {
		return nil
	}
	least, most := float64(o.MinConcurrent), float64(o.MaxConcurrent)
	return &trial{least: least, most: most, limit: min(most, max(least, initial, most/4)), doubt: 0.25}
}

// places returns how many functions may run now.
func (t *trial) places(now time.Time) int {
	t.proceed(now)
	if since := t.since(now); since >= 0 && since < 3 && t.groups[0].begun >= enough {
		return t.half()
	}
	return int(t.limit)
}

// restores returns when the present trial gives the places back.
func (t *trial) restores() time.Time { return t.at.Add(3 * t.unit) }

func (t *trial) half() int { return int(max(t.least, math.Floor(t.limit/2))) }

// since returns how long ago the trial began, in units; minus infinity if there is none.
func (t *trial) since(now time.Time) float64 {
	if t.at.IsZero() {
		return math.Inf(-1)
	}
	return float64(now.Sub(t.at)) / float64(t.unit)
}

// begun notes that a function begins, with running functions including itself, and returns the
// trial and group in which it counts; 0 for none. Functions do not count if places are free.
func (t *trial) begun(now time.Time, running int) (member uint32) {
	switch since := t.since(now); {
	case since >= -3 && since < -1 && running >= int(t.limit):
		member = 0
	case since >= 1 && since < 2 && running >= t.half():
		member = 1
	default:
		return 0
	}
	t.groups[member].begun++
	return t.number<<2 | member + 1
}

// ended notes that a function of member has ended after took. says reports whether it succeeded or
// ran into Timeout. Another one does not count if it was quicker than the mean. If it was slower, it
// was cut off, by its caller's deadline or the source's own, and counts like one that still runs:
// with their own times, functions that are cut off would look equally fast in both groups.
func (t *trial) ended(member uint32, took time.Duration, says bool) {
	of := &group{}
	if member != 0 && member>>2 == t.number&(1<<30-1) {
		of = &t.groups[member&3-1]
	}
	log := math.Log(max(took, time.Microsecond).Seconds())
	switch {
	case says:
		t.samples = min(t.samples+1, known)
		t.logs += (log - t.logs) / float64(t.samples)
	case log > t.logs:
		of.cut++
		log = t.longest()
	default:
		of.begun--
		return
	}
	log = min(log, t.longest())
	of.ended++
	of.sum += log
	of.squares += log * log
}

// longest returns the logarithm of the longest time that a function counts for.
func (t *trial) longest() float64 { return math.Log((3 * t.unit).Seconds()) }

// proceed ends a trial that is over and plans the next one.
func (t *trial) proceed(now time.Time) {
	if t.since(now) >= 5 {
		t.judge()
		t.at = time.Time{}
	}
	if t.samples < 16 || t.since(now) >= -3 {
		return
	}
	unit := t.units()
	if !t.at.IsZero() && unit == t.unit {
		return
	}
	every := cycle * unit
	if unit > longUnit {
		every = longCycle * unit
	}
	t.unit, t.groups = unit, [2]group{}
	t.number++
	from := now.Add(3 * unit)
	t.at = from.Add(every - time.Duration(from.UnixNano())%every)
}

// units returns the unit for trials of functions as slow as at present: 1/32 s, doubled as often as needed.
func (t *trial) units() time.Duration {
	const least = time.Second / cycle
	takes := 1.5 * math.Exp(min(t.logs, 10))
	return least << bits.Len64(uint64(takes*float64(time.Second)/float64(least)))
}

// judge moves the limit by the result of the trial.
func (t *trial) judge() {
	full, half := t.groups[0].whole(t.longest()), t.groups[1].whole(t.longest())
	switch {
	case t.half() == int(t.limit): // nothing could be taken away
		t.slower, t.doubt = 0, 0.25
	case full.begun < enough || half.begun == half.cut: // that all were cut off does not mean that they were as fast
		return
	default:
		t.weigh(full, half)
	}
	if sure := t.slower - certainty*math.Sqrt(t.doubt); sure > tolerated {
		t.lower(min(sure, math.Ln2))
		return
	}
	t.raise()
}

// whole returns g with its functions that still run, each as if it took the longest time that counts.
func (g group) whole(longest float64) group {
	late := float64(g.begun - g.ended)
	g.sum, g.squares = g.sum+late*longest, g.squares+late*longest*longest
	return g
}

func (g group) mean() float64 { return g.sum / float64(g.begun) }

// weigh updates slower with the difference of two groups. Half of the functions are at most twice
// as fast, so a larger difference is chance.
func (t *trial) weigh(full, half group) {
	n, m := float64(full.begun), float64(half.begun)
	variance := (full.squares - full.sum*full.mean() + half.squares - half.sum*half.mean()) / (n + m)
	variance = max(variance, 0.1) * (1/n + 1/m)
	seen := min(max(full.mean()-half.mean(), -math.Ln2), math.Ln2)
	t.doubt += drift
	gain := t.doubt / (t.doubt + variance)
	t.slower = max(-0.1, t.slower+(seen-t.slower)*gain)
	t.doubt *= 1 - gain
}

func (t *trial) lower(by float64) {
	t.limit = max(t.least, t.limit*math.Exp(-by))
	t.slower -= by
	t.doubt += by * by / 16
	t.clean = 0
}

// raise raises the limit: by more the more verdicts in a row have raised it, and at most to twice as much.
func (t *trial) raise() {
	step := math.Sqrt(t.limit) * math.Exp2(float64(min(max(0, t.clean-1), 20)))
	limit := min(t.most, t.limit+min(step, t.limit))
	grown := limit/t.limit - 1
	t.doubt += grown * grown / 4
	t.limit = limit
	t.clean++
}

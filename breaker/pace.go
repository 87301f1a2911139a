package breaker

import (
	"slices"
	"sort"
	"time"
)

// A pace says how fast places come free: from how long the last functions kept theirs,
// and from how long those that run have had theirs. The second is all there is to know
// at a start, and the first sign of a source that has become slow or hangs: what runs
// for long ends late, and tells nothing until then.
type pace struct {
	mean   time.Duration // of the last functions, the later ones counting for more
	starts []time.Time   // of the functions that run, the oldest first
}

// weight is the part of the mean that one more function makes up.
const weight = 1.0 / 64

func (p *pace) began(at time.Time) { p.starts = append(p.starts, at) }

// left takes a function that began at a time, or the call that has given its place back,
// from those that run.
func (p *pace) left(began time.Time) {
	i := sort.Search(len(p.starts), func(i int) bool { return !p.starts[i].Before(began) })
	p.starts = slices.Delete(p.starts, i, i+1)
}

// ended notes how long a function took.
func (p *pace) ended(took time.Duration) {
	if p.mean == 0 {
		p.mean = took
	}
	p.mean += time.Duration(weight * float64(took-p.mean))
}

// service is how long a function can be expected to keep its place: as long as the last
// ones did, or as long as half of those that run have had theirs already. A few that
// hang do not change that.
func (p *pace) service(now time.Time) time.Duration {
	if n := len(p.starts); n > 0 {
		return max(p.mean, now.Sub(p.starts[n/2]))
	}
	return p.mean
}

// wait is how long the turn of a call can be expected to take that has ahead others
// before it, when no place is free. A function that has run for three times the mean
// counts as one that hangs: its place does not take part. If all are such, they are
// expected to take as long again. The ages count once, for what runs now: after this
// process has stood still all that runs looks old, and what follows is as fast as before.
func (p *pace) wait(ahead int, now time.Time) time.Duration {
	since := now.Add(-3 * p.mean)
	hang := sort.Search(len(p.starts), func(i int) bool { return p.starts[i].After(since) })
	turning := p.starts[hang:]
	switch n := len(turning); {
	case n > 0:
		return time.Duration(ahead/n)*p.mean + max(0, p.mean-now.Sub(turning[ahead%n]))
	case hang > 0:
		return time.Duration(ahead/hang)*p.mean + now.Sub(p.starts[hang-1-ahead%hang])
	}
	return 0
}

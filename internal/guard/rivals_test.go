package guard

import (
	"math"
	"math/rand/v2"
	"time"
)

// Two limits that others have, as controls. Both move once a second by the mean of what ended in it,
// if that is ten functions or more, as WindowedLimit of Netflix/concurrency-limits has them do.
type windowed struct {
	limit, least, most float64
	move               func(mean float64)

	now     time.Time
	next    time.Time
	sum     float64
	samples int
}

func (w *windowed) places(now time.Time) int { w.now = now; return int(w.limit) }

func (w *windowed) begun(now time.Time, _ int) uint32 { w.now = now; return 0 }

func (w *windowed) ended(_ uint32, took time.Duration, _ bool) {
	w.sum, w.samples = w.sum+took.Seconds(), w.samples+1
	if w.now.Before(w.next) {
		return
	}
	if w.samples >= 10 {
		w.move(w.sum / float64(w.samples))
		w.limit = min(w.most, max(w.least, w.limit))
	}
	w.sum, w.samples, w.next = 0, 0, w.now.Add(time.Second)
}

// gradient2 is Gradient2Limit with its defaults: the average of a long time ÷ that of a second.
func gradient2(least, most int) func(int) limiter {
	return func(int) limiter {
		w := &windowed{limit: min(float64(most), 20), least: float64(least), most: float64(most)}
		long, warm := 0.0, 0.0
		w.move = func(mean float64) {
			if warm++; warm <= 10 {
				long += (mean - long) / warm
			} else {
				long += (mean - long) * 2 / 601
			}
			if long > 2*mean {
				long *= 0.9
			}
			gradient := max(0.5, min(1, long/mean))
			w.limit += 0.2 * (w.limit*gradient + 4 - w.limit)
		}
		return w
	}
}

// vegas is VegasLimit with its defaults: the shortest time, forgotten now and then, tells how many wait.
func vegas(least, most int) func(int) limiter {
	return func(process int) limiter {
		rng := rand.New(rand.NewPCG(uint64(process), 3))
		w := &windowed{limit: min(float64(most), 20), least: float64(least), most: float64(most)}
		shortest, moves, forget := 0.0, 0.0, 0.5+rng.Float64()/2
		w.move = func(mean float64) {
			moves++
			if moves >= forget*30*w.limit {
				shortest, moves, forget = mean, 0, 0.5+rng.Float64()/2
				return
			}
			if shortest == 0 || mean < shortest {
				shortest = mean
				return
			}
			waiting, log := math.Ceil(w.limit*(1-shortest/mean)), max(1, math.Floor(math.Log10(w.limit)))
			switch {
			case waiting <= log:
				w.limit += 6 * log
			case waiting < 3*log:
				w.limit += log
			case waiting > 6*log:
				w.limit -= log
			}
		}
		return w
	}
}

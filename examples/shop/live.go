package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/levee-go/levee/examples/internal/servers"
)

// A frame is what the page learns in each beat.
type frame struct {
	At          float64 // seconds since the start
	Seconds     float64 // that the beat took
	Sides       [sides]sideFrame
	Trouble     trouble
	Protections Protections
	Events      []string     // buttons that were pressed
	Ends        [sides][]int // products in Redis by the second in which they expire
	Price       *priceChange // the last
	Stalled     float64      // ms that this process could not run at a stretch in the beat: others have the processors
}

// A sideFrame is one shop in a beat.
type sideFrame struct {
	Now       count
	Total     count   // since the start
	P50, P99  float64 // of visitors, in ms
	Queries   int64   // asked of the database in this beat
	AtOnce    int64   // the most of them under way at a moment
	Database  figures // since the start, of all processes
	Processes []processFrame
}

type processFrame struct {
	Number  int
	Address string // "" while it is dead
	health
}

// A priceChange tells when each process of each shop served a new price, in ms after the writer had its answer; -1: not yet.
type priceChange struct {
	Cents  int64
	Served [sides][]float64
}

// A live is the stage as the page sees it.
type live struct {
	*stage
	began time.Time

	lock   sync.Mutex // guards what follows
	frames []frame    // the last ones
	events []string
	change *priceChange
	shown  state
	stalls time.Duration          // the longest since the last frame
	heard  map[chan struct{}]bool // who waits for the next frame
	totals [sides]count
	seen   [sides]int64 // queries
}

// A state is what the buttons and switches show.
type state struct {
	trouble     trouble
	protections Protections
}

// show has the next frame tell the present state. The caller holds stage.mu.
func (l *live) show() {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.shown = state{l.trouble, l.settings.Protections}
}

// kept is how many frames a page that is opened gets.
const kept = 240

func newLive(s *stage) *live {
	l := &live{stage: s, began: time.Now(), heard: map[chan struct{}]bool{}}
	l.show()
	return l
}

// feel notes for how long the process cannot run, until ctx ends: how late a sleep of a few milliseconds ends.
func (l *live) feel(ctx context.Context) {
	const nap = 10 * time.Millisecond
	for began := time.Now(); servers.Sleep(ctx, nap) == nil; began = time.Now() {
		late := time.Since(began) - nap
		l.lock.Lock()
		l.stalls = max(l.stalls, late)
		l.lock.Unlock()
	}
}

// watch makes a frame with each beat until ctx ends.
func (l *live) watch(ctx context.Context) {
	for last := time.Now(); servers.Sleep(ctx, l.beat-time.Since(last)%l.beat) == nil; {
		var looks sync.WaitGroup
		for _, f := range l.fleets {
			looks.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, l.beat)
				defer cancel()
				f.look(ctx)
			})
		}
		ends := l.expiries(ctx)
		looks.Wait()
		now := time.Now()
		l.add(l.frame(now, now.Sub(last), ends))
		last = now
	}
}

func (l *live) frame(now time.Time, took time.Duration, ends [sides][]int) frame {
	f := frame{At: now.Sub(l.began).Seconds(), Seconds: took.Seconds(), Ends: ends}
	l.lock.Lock()
	f.Trouble, f.Protections = l.shown.trouble, l.shown.protections
	f.Stalled, l.stalls = l.stalls.Seconds()*1000, 0
	l.lock.Unlock()
	for side := range f.Sides {
		s := &f.Sides[side]
		n, p50, p99 := l.crowd.tallies[side].next()
		s.Now, s.P50, s.P99 = n, p50.Seconds()*1000, p99.Seconds()*1000
		s.Total = l.totals[side].plus(n)
		for _, p := range l.fleets[side].processes {
			figures, alive := p.figures()
			s.Database.Queries += figures.Queries
			s.Database.Hot += figures.Hot
			s.Database.Withdrawn += figures.Withdrawn
			s.Database.Absent += figures.Absent
			one := processFrame{Number: p.Number, Address: p.address()}
			if alive {
				one.health = figures.health
				s.AtOnce += figures.Peak
			}
			s.Processes = append(s.Processes, one)
		}
		s.Queries = max(0, s.Database.Queries-l.seen[side])
		l.totals[side], l.seen[side] = s.Total, s.Database.Queries
	}
	return f
}

func (c count) plus(n count) count {
	return count{
		c.Asked + n.Asked, c.Answered + n.Answered, c.Errors + n.Errors, c.Stale + n.Stale, c.Pages + n.Pages, c.PageErrors + n.PageErrors,
		c.Local + n.Local, c.Filter + n.Filter, c.Redis + n.Redis, c.Source + n.Source,
	}
}

// add gives a frame to the pages.
func (l *live) add(f frame) {
	l.lock.Lock()
	defer l.lock.Unlock()
	f.Events, l.events = l.events, nil
	if l.change != nil {
		f.Price = l.change.clone()
	}
	if l.frames = append(l.frames, f); len(l.frames) > kept {
		l.frames = l.frames[1:]
	}
	for waits := range l.heard {
		close(waits)
	}
	clear(l.heard)
}

// since returns the frames later than at, and a channel that is closed with the next one.
func (l *live) since(at float64) ([]frame, chan struct{}) {
	l.lock.Lock()
	defer l.lock.Unlock()
	waits := make(chan struct{})
	l.heard[waits] = true
	i := len(l.frames)
	for i > 0 && l.frames[i-1].At > at {
		i--
	}
	return append([]frame(nil), l.frames[i:]...), waits
}

// mark puts a mark into the charts.
func (l *live) mark(what string) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.events = append(l.events, what)
}

func (c *priceChange) clone() *priceChange {
	var copied priceChange
	data, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(data, &copied)
	}
	if err != nil {
		return nil
	}
	return &copied
}

// changePrice raises the price of the hot product in both shops, and finds out when each process serves it. It returns when the writers
// have their answers.
func (l *live) changePrice(ctx context.Context) error {
	l.cents += 100
	change := &priceChange{Cents: l.cents}
	for side, f := range l.fleets {
		for range f.processes {
			change.Served[side] = append(change.Served[side], -1)
		}
	}
	l.lock.Lock()
	l.change = change
	l.lock.Unlock()
	l.mark("price")
	failed := make(chan error, sides)
	for side, f := range l.fleets {
		go func() {
			err := f.setPrice(ctx, hot, change.Cents)
			failed <- err
			if err == nil {
				l.whenServed(context.WithoutCancel(ctx), change, side)
			}
		}()
	}
	var err error
	for range l.fleets {
		if one := <-failed; one != nil {
			err = fmt.Errorf("changing the price: %w", one)
		}
	}
	return err
}

// whenServed asks each process until it serves the new price.
func (l *live) whenServed(ctx context.Context, change *priceChange, side int) {
	written := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 2*l.ttl+l.patience)
	defer cancel()
	var all sync.WaitGroup
	for i, p := range l.fleets[side].processes {
		all.Go(func() {
			for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
				if address := p.address(); address != "" {
					cents, err := l.fleets[side].price(ctx, address, hot)
					if err == nil && cents >= change.Cents {
						l.lock.Lock()
						change.Served[side][i] = time.Since(written).Seconds() * 1000
						l.lock.Unlock()
						return
					}
				}
				if servers.Sleep(ctx, pause) != nil {
					return
				}
			}
		})
	}
	all.Wait()
}

package main

import (
	"sync"
	"time"
)

// A meter is read at an even pace while a flood lasts.
type meter struct {
	end      chan struct{}
	running  sync.WaitGroup
	readings []reading // to be read after stop
}

// A reading is what has come together since the flood began.
type reading struct {
	at      time.Duration // since then
	queries int64
	stale   int
}

const meterPace = 20 * time.Millisecond

// start reads until stop is called.
func (m *meter) start(read func() reading) {
	began := time.Now()
	m.end = make(chan struct{})
	note := func() {
		r := read()
		r.at = time.Since(began)
		m.readings = append(m.readings, r)
	}
	note()
	m.running.Go(func() {
		tick := time.NewTicker(meterPace)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				note()
			case <-m.end:
				note()
				return
			}
		}
	})
}

// stop ends the reading, if it goes on.
func (m *meter) stop() {
	if m.end != nil {
		close(m.end)
		m.running.Wait()
		m.end = nil
	}
}

// most returns the most queries that there were within a stretch of time.
func most(readings []reading, within time.Duration) (n int64) {
	from := 0
	for _, r := range readings {
		for r.at-readings[from].at > within {
			from++
		}
		n = max(n, r.queries-readings[from].queries)
	}
	return n
}

package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
)

// hitRatios are the tables of -work hitratio: one for each size and type of key.
var hitRatios = []workload{
	hitRatio[int64](1), hitRatio[int64](4), hitRatio[int64](16), hitRatio[int64](64),
	hitRatio[string](1), hitRatio[string](4), hitRatio[string](16), hitRatio[string](64),
}

// asItIs is levee with the size as its MaxBytes. All other rows get the room that makes them take the size.
const asItIs = "levee as it is"

func hitRatio[K int64 | string](mebibytes int) workload {
	var key K
	w := workload{
		name:  fmt.Sprintf("hitratio-%T-%d", key, mebibytes),
		title: fmt.Sprintf("Hit ratio at %d MiB, keys of type %T", mebibytes, key),
		about: "Hits in percent of the second half of the requests, at equal heap (after two collections, tables included; values are structs of 200 bytes), one goroutine, which yields so that no write is dropped. " +
			"How many entries a contender gets is found by filling it. heap: at the end of the Zipf trace, by the size.",
		contenders: []string{"levee", asItIs, "ristretto", "otter"},
		reference:  "ristretto",
		run: func(_ context.Context, p *process) error {
			return measureHits[K](p, int64(mebibytes)<<20)
		},
	}
	if _, text := any(key).(string); text {
		w.contenders = append(w.contenders, "sturdyc", "go-redis/cache")
	}
	for _, t := range traces {
		w.columns = append(w.columns, counted(t.name, "%.1f", t.name, false))
	}
	w.columns = append(w.columns,
		counted("entries", "%.0f", "entries", false), share("bytes an entry", "%.0f", "bytes", "entries", true), counted("heap", "%.2f", "heap", false))
	return w
}

func keyOf[K int64 | string](id int) (key K) {
	switch k := any(&key).(type) {
	case *int64:
		*k = int64(id)
	case *string:
		*k = fmt.Sprintf("product:%016d", id)
	}
	return key
}

// leanest is about what an entry takes in the leanest contender.
const leanest = 268

func measureHits[K int64 | string](p *process, size int64) error {
	runtime.GOMAXPROCS(1)
	room, err := calibrate[K](p, size)
	if err != nil {
		return err
	}
	n := pick(p.Size, 10_000, 1_000_000, 4_000_000)
	for _, t := range traces {
		next := t.start(int(size / leanest))
		before := heapAfterTwo()
		m, err := openPlain[K](p.Contender, room)
		if err != nil {
			return err
		}
		p.count(t.name, hits(m, next, n))
		if t.name == "Zipf" {
			p.count("heap", float64(heapAfterTwo()-before)/float64(size))
		}
		m.close()
		runtime.KeepAlive(next)
	}
	return nil
}

// hits returns the hits among the second half of n requests, in percent.
func hits[K int64 | string](m plain[K], next func() (int, bool), n int) float64 {
	var hits, all float64
	sets := 0
	for i := range n {
		id, counts := next()
		key := keyOf[K](id)
		hit := m.has(key)
		if !hit {
			m.set(key, id)
			if sets++; sets%16 == 0 {
				runtime.Gosched()
			}
		}
		if i%64 == 0 {
			runtime.Gosched()
		}
		if counts && i >= n/2 {
			all++
			if hit {
				hits++
			}
		}
	}
	return 100 * hits / all
}

// calibrate returns with how much room a full contender takes size bytes of the heap, to 2.5 %, and
// counts its entries and their bytes.
func calibrate[K int64 | string](p *process, size int64) (room int64, err error) {
	fixed := p.Contender == asItIs
	room = size / 400
	if fixed || p.Contender == "levee" {
		room = size
	}
	var entries int
	var bytes int64
	for range pick(p.Size, 1, 12, 12) {
		if entries, bytes, err = filled[K](p.Contender, room, int(2*size/leanest)); err != nil {
			return 0, err
		}
		if by := float64(size) / float64(bytes); !fixed && math.Abs(by-1) > 0.025 {
			room = max(int64(float64(room)*by), 1000)
			continue
		}
		break
	}
	p.count("entries", float64(entries))
	p.count("bytes", float64(bytes))
	return room, nil
}

// filled returns what a contender takes that was given n different keys.
func filled[K int64 | string](contender string, room int64, n int) (entries int, bytes int64, err error) {
	before := heapAfterTwo()
	m, err := openPlain[K](contender, room)
	if err != nil {
		return 0, 0, err
	}
	defer m.close()
	for id := range n {
		m.set(keyOf[K](id), id)
		if id%16 == 0 {
			runtime.Gosched()
		}
	}
	runtime.Gosched()
	bytes = heapAfterTwo() - before
	for id := range n {
		if m.has(keyOf[K](id)) {
			entries++
		}
	}
	return entries, bytes, nil
}

// heapAfterTwo is the heap without what a sync.Pool has.
func heapAfterTwo() int64 {
	runtime.GC()
	return heap()
}

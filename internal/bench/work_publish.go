package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var publish = workload{
	name:  "publish",
	title: "What a message takes",
	about: "A message of 60 bytes to so many connections. Alone: the next is published when all have heard the last; 64: as many in one pipeline, so that Redis writes " +
		"several of them to a connection at once. Microseconds of Redis' processor for a message, and for each subscriber of one; milliseconds until the last has it. " +
		"Tracked: the connections have read a key under CLIENT TRACKING, another deletes it; microseconds for the DEL and each that is told. Memory is that of Redis for a subscriber.",
	contenders: []string{"1", "10", "100", "1,000", "10,000"},
	reference:  "1",
	columns: []column{
		share("alone: µs", "%.0f", "redis", "operations", false),
		{"a subscriber", "%.2f", false, func(r report) float64 {
			return r.Counts["redis"] / r.Counts["operations"] / r.Counts["subscribers"]
		}},
		quantile("p50 ms", "%.2f", "took", 0.5, 1000, false),
		share("64: a subscriber", "%.2f", "many redis", "many heard", false),
		share("tracked: a reader", "%.2f", "tracked redis", "tracked heard", false),
		share("KB", "%.1f", "memory", "subscribers", false),
	},
	run: func(ctx context.Context, p *process) error {
		n := numberOf(p.Contender)
		if p.Size == tiny {
			n = min(n, 10)
		}
		p.count("subscribers", float64(n))
		if err := pricePublish(p, n); err != nil {
			return err
		}
		return priceTracked(p, n)
	},
}

// numberOf reads a number with commas.
func numberOf(text string) (n int) {
	_, _ = fmt.Sscan(strings.ReplaceAll(text, ",", ""), &n)
	return n
}

// An audience are connections that hear messages.
type audience struct {
	wires []*wire
	heard atomic.Int64
	upTo  atomic.Int64
	all   chan struct{} // sent to when heard is upTo
}

// gather opens n connections, each of which says what first says, for so many replies.
func gather(addr string, n, replies int, first []byte) (*audience, error) {
	a := &audience{all: make(chan struct{}, 1)}
	for range n {
		w, err := dialWire(addr)
		if err != nil {
			a.leave()
			return nil, err
		}
		a.wires = append(a.wires, w)
		if err := w.ask(replies, first); err != nil {
			a.leave()
			return nil, err
		}
	}
	return a, nil
}

// listen has all connections count what they hear, until they leave. It calls each with the number of messages that
// all together have heard.
func (a *audience) listen(each func(n int64)) {
	for _, w := range a.wires {
		go func() {
			for w.skip() == nil {
				each(a.heard.Add(1))
			}
		}()
	}
}

// tell ends hear.
func (a *audience) tell(n int64) {
	if n == a.upTo.Load() {
		a.all <- struct{}{}
	}
}

// hear calls do, and waits until each connection has heard n messages more.
func (a *audience) hear(n int, do func() error) error {
	a.upTo.Store(a.heard.Load() + int64(n*len(a.wires)))
	if err := do(); err != nil {
		return err
	}
	select {
	case <-a.all:
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("%d of %d messages were heard", a.heard.Load(), a.upTo.Load())
	}
}

func (a *audience) leave() {
	for _, w := range a.wires {
		_ = w.Close()
	}
}

func pricePublish(p *process, n int) error {
	w, err := dialWire(p.Redis)
	if err != nil {
		return err
	}
	defer w.Close()
	empty, err := askServer(p.stats, "used_memory")
	if err != nil {
		return err
	}
	a, err := gather(p.Redis, n, 1, wireCommand("SUBSCRIBE", "m"))
	if err != nil {
		return err
	}
	defer a.leave()
	a.listen(a.tell)
	message := wireCommand("PUBLISH", "m", strings.Repeat("x", 60))
	one := func(int) error { return a.hear(1, func() error { return w.ask(1, message) }) }
	for i := range 10 {
		if err := one(i); err != nil {
			return err
		}
	}
	deliveries := pick(p.Size, 100, 100_000, 500_000)
	times := min(max(deliveries/n, 20), 20_000)
	if err := p.price(times, func() error { return p.inTurn(1, times, one) }); err != nil {
		return err
	}
	const batch = 64
	messages := []byte(strings.Repeat(string(message), batch))
	times = max(min(deliveries/n, 100_000)/batch, 3)
	redis, err := p.redisTook(func() error {
		for range times {
			if err := a.hear(batch, func() error { return w.ask(batch, messages) }); err != nil {
				return err
			}
		}
		return nil
	})
	p.count("many redis", redis)
	p.count("many heard", float64(times*batch*n))
	if err != nil {
		return err
	}
	full, err := askServer(p.stats, "used_memory")
	p.count("memory", (full-empty)/1000)
	return err
}

// redisTook returns the microseconds that Redis has had a processor while do ran.
func (p *process) redisTook(do func() error) (float64, error) {
	before, err := serverNumbers(p.stats)
	if err == nil {
		err = do()
	}
	if err != nil {
		return 0, err
	}
	after, err := serverNumbers(p.stats)
	return 1e6 * (redisTime(after) - redisTime(before)), err
}

// priceTracked measures what a DEL takes of a key that n connections have read under CLIENT TRACKING.
func priceTracked(p *process, n int) error {
	w, err := dialWire(p.Redis)
	if err != nil {
		return err
	}
	defer w.Close()
	keys := min(max(pick(p.Size, 100, 50_000, 200_000)/n, 20), 5000)
	first := append(wireCommand("HELLO", "3"), wireCommand("CLIENT", "TRACKING", "ON")...)
	for key := range keys {
		if err := w.ask(1, wireCommand("SET", fmt.Sprint("tracked", key), "x")); err != nil {
			return err
		}
		first = append(first, wireCommand("GET", fmt.Sprint("tracked", key))...)
	}
	a, err := gather(p.Redis, n, keys+2, first)
	if err != nil {
		return err
	}
	defer a.leave()
	a.listen(a.tell)
	redis, err := p.redisTook(func() error {
		for key := range keys {
			if err := a.hear(1, func() error { return w.ask(1, wireCommand("DEL", fmt.Sprint("tracked", key))) }); err != nil {
				return err
			}
		}
		return nil
	})
	p.count("tracked redis", redis)
	p.count("tracked heard", float64(keys*n))
	return err
}

var flow = workload{
	name:  "flow",
	title: "Where messages end",
	about: "Messages of 60 bytes at random times (Poisson), so many a second, to 1,000 connections. How busy Redis' one processor is; microseconds of it for each delivery; " +
		"milliseconds from the moment at which a message was due until the last connection has it, and what a PING takes meanwhile, as any command. The more there are, the more of them Redis writes to a connection at once.",
	contenders: []string{"10", "30", "60", "100", "200", "400", "800", "1,600"},
	reference:  "10",
	columns: []column{
		share("Redis busy (%)", "%.0f", "redis", "hundredths", false),
		share("a delivery, µs", "%.2f", "redis", "deliveries", false),
		quantile("p50 ms", "%.1f", "took", 0.5, 1000, false),
		quantile("p99 ms", "%.1f", "took", 0.99, 1000, false),
		quantile("a PING: p50 ms", "%.1f", "ping", 0.5, 1000, false),
		quantile("p99 ms", "%.1f", "ping", 0.99, 1000, false),
	},
	run: priceFlow,
}

func priceFlow(_ context.Context, p *process) error {
	subscribers := pick(p.Size, 10, 1000, 1000)
	w, err := dialWire(p.Redis)
	if err != nil {
		return err
	}
	defer w.Close()
	a, err := gather(p.Redis, subscribers, 1, wireCommand("SUBSCRIBE", "m"))
	if err != nil {
		return err
	}
	defer a.leave()
	span := pick(p.Size, 100*time.Millisecond, 2*time.Second, 4*time.Second)
	due := arrivalTimes(float64(numberOf(p.Contender)), span)
	began := time.Now().Add(10 * time.Millisecond)
	noted := newLatencies(len(due))
	a.listen(func(n int64) { // the last of a message, give or take a connection that is ahead
		if i := int(n)/subscribers - 1; n%int64(subscribers) == 0 {
			noted.note(i, time.Since(began.Add(due[i])))
		}
	})
	go func() { // its replies, so that Redis can go on
		for w.skip() == nil {
		}
	}()
	asker, err := dialWire(p.Redis)
	if err != nil {
		return err
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	defer asker.Close()
	asking.Go(func() {
		for sleepUntil(began); ; time.Sleep(time.Millisecond) {
			asked := time.Now()
			if asker.ask(1, wireCommand("PING")) != nil {
				return
			}
			p.took("ping", time.Since(asked))
		}
	})
	message := wireCommand("PUBLISH", "m", strings.Repeat("x", 60))
	redis, err := p.redisTook(func() error {
		for _, at := range due {
			sleepUntil(began.Add(at))
			if _, err := w.Write(message); err != nil {
				return err
			}
		}
		select {
		case <-noted.all:
			return nil
		case <-time.After(30 * time.Second):
			return fmt.Errorf("%d messages were heard", a.heard.Load())
		}
	})
	if err != nil {
		return err
	}
	p.took("took", noted.took...)
	p.count("redis", redis)
	p.count("hundredths", float64(time.Since(began).Microseconds())/100)
	p.count("deliveries", float64(len(due)*subscribers))
	return nil
}

// latencies are what some messages took, which several goroutines note.
type latencies struct {
	mu   sync.Mutex // guards took until all is closed, and left
	took []time.Duration
	left int
	all  chan struct{} // closed when each is noted, which need not be with the last message
}

func newLatencies(n int) *latencies {
	return &latencies{took: make([]time.Duration, n), left: n, all: make(chan struct{})}
}

func (l *latencies) note(i int, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took[i] = took
	if l.left--; l.left == 0 {
		close(l.all)
	}
}

// arrivalTimes returns random times within span, so many a second and at least one.
func arrivalTimes(rate float64, span time.Duration) (due []time.Duration) {
	rng := rand.New(rand.NewPCG(1, 5))
	for at := 0.0; ; {
		at += rng.ExpFloat64() / rate
		if at > span.Seconds() && len(due) > 0 {
			return due
		}
		due = append(due, time.Duration(at*float64(time.Second)))
	}
}

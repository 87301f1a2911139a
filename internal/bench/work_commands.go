package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var commands = workload{
	name:  "commands",
	title: "What one Redis can be asked",
	about: "GETRANGEs of 10,000 values of 252 bytes, which is what levee reads for a value of 200, by connections without a client: 50 with one command at a time, 8 with pipelines. " +
		"Thousands of commands a second, in which clients and Redis share the processors; Redis' own time for a command, and how many a second would fill one processor. " +
		"Tracked: the connection is under CLIENT TRACKING; bytes are what Redis keeps for a key and connection.",
	contenders: []string{"one at a time", "pipelines of 8", "pipelines of 64", "pipelines of 64, tracked"},
	reference:  "one at a time",
	columns: []column{
		share("k/s", "%.0f", "operations", "ms", false),
		share("Redis µs", "%.2f", "redis", "operations", false),
		{"a full processor, k/s", "%.0f", false, func(r report) float64 { return 1000 * r.Counts["operations"] / r.Counts["redis"] }},
		share("tracking, bytes", "%.0f", "memory", "tracked", false),
	},
	run: priceCommands,
}

func priceCommands(_ context.Context, p *process) error {
	w, err := dialWire(p.Redis)
	if err != nil {
		return err
	}
	defer w.Close()
	keys := pick(p.Size, 100, 10_000, 10_000)
	value := strings.Repeat("x", 252)
	for id := range keys {
		if err := w.ask(1, wireCommand("SET", fmt.Sprint(keyPrefix, id), value)); err != nil {
			return err
		}
	}
	length, connections := 1, 50
	how, tracked := strings.CutSuffix(p.Contender, ", tracked")
	if how != "one at a time" {
		length, connections = numberOf(strings.TrimPrefix(how, "pipelines of ")), 8
	}
	var hello []byte
	if tracked {
		hello = append(wireCommand("HELLO", "3"), wireCommand("CLIENT", "TRACKING", "ON")...)
	} else {
		hello = append(wireCommand("HELLO", "3"), wireCommand("PING")...)
	}
	a, err := gather(p.Redis, connections, 2, hello)
	if err != nil {
		return err
	}
	defer a.leave()
	before, err := askServer(p.stats, "used_memory")
	if err != nil {
		return err
	}
	if tracked { // each reads all keys, so that what follows finds them tracked, as in a service that goes on
		for _, w := range a.wires {
			for id := range keys {
				if err := w.ask(1, wireCommand("GETRANGE", fmt.Sprint(keyPrefix, id), "0", "1048628")); err != nil {
					return err
				}
			}
		}
	}
	after, err := askServer(p.stats, "used_memory")
	if err != nil {
		return err
	}
	p.count("tracked", float64(keys*connections))
	if tracked {
		p.count("memory", after-before)
	}
	var asked atomic.Int64
	began := time.Now()
	err = p.price(0, func() error {
		return askAll(a.wires, length, keys, pick(p.Size, 20*time.Millisecond, time.Second, 3*time.Second), &asked)
	})
	p.count("ms", float64(time.Since(began).Milliseconds()))
	p.count("operations", float64(asked.Load()))
	return err
}

// askAll has each connection ask for random keys, so many in a pipeline, until span is over.
func askAll(wires []*wire, length, keys int, span time.Duration, asked *atomic.Int64) error {
	var all sync.WaitGroup
	errs := make([]error, len(wires))
	end := time.Now().Add(span)
	for i, w := range wires {
		all.Go(func() {
			pipelines := make([][]byte, 64) // made before, since that takes longer than Redis
			for j := range pipelines {
				var b bytes.Buffer
				for range length {
					b.Write(wireCommand("GETRANGE", fmt.Sprint(keyPrefix, rand.IntN(keys)), "0", "1048628"))
				}
				pipelines[j] = b.Bytes()
			}
			for j := 0; errs[i] == nil && (j == 0 || time.Now().Before(end)); j++ {
				errs[i] = w.ask(length, pipelines[j%len(pipelines)])
				asked.Add(int64(length))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

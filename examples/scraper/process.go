package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A scraper is what the process of the scraper is told. It has one of its own, so that its work is not done on the shop's threads.
type scraper struct {
	Products          []string // their URLs, one for each process of the shop
	Connections, Rate int      // how many, and for how many ids a second altogether
	Patience          time.Duration
	Seed              uint64
}

// A catch is what the scraper got so far.
type catch struct {
	Scraped int64 // ids that it was answered
	Odd     int64 // other answers than "no such product"
}

// scraperVariable is the environment variable that makes a process of this program the scraper, and tells it what to do.
const scraperVariable = "LEVEE_EXAMPLE_SCRAPER"

// scrape lets the scraper loose until the attack is over.
func (a *attack) scrape(ctx context.Context) error {
	told := scraper{Connections: a.size.clients, Rate: a.size.requests, Patience: a.size.patience, Seed: a.seed}
	for _, h := range a.shops {
		told.Products = append(told.Products, h.url)
	}
	text, err := json.Marshal(told)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	process := exec.CommandContext(ctx, self)
	process.Env = append(os.Environ(), scraperVariable+"="+string(text))
	process.Stderr = os.Stderr
	in, err := process.StdinPipe()
	if err != nil {
		return err
	}
	out, err := process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := process.Start(); err != nil {
		return err
	}
	says := json.NewDecoder(out)
	for {
		var c catch
		if err := says.Decode(&c); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			cancel()
			return errors.Join(err, process.Wait())
		}
		a.scraped.Store(c.Scraped)
		a.odd.Store(c.Odd)
		if a.over(ctx) {
			in.Close() // which tells it to stop; it says once more what it got
		}
	}
	return process.Wait()
}

// scraperMain is the scraper, if this process is to be that, and ends it; else it returns.
func scraperMain() {
	text := os.Getenv(scraperVariable)
	if text == "" {
		return
	}
	signal.Ignore(os.Interrupt, syscall.SIGHUP) // the terminal sends them to both; the shop's process ends this one
	var s scraper
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	s.run(ctx, json.NewEncoder(os.Stdout))
	os.Exit(0)
}

// run asks until ctx ends, and says ten times a second what it got. An id is not asked for if all connections wait for answers: a shop that
// answers slowly is asked for less.
func (s scraper) run(ctx context.Context, says *json.Encoder) {
	client := httpClient(s.Patience)
	defer client.CloseIdleConnections()
	rounds := min(s.Rate, 1000) // a second; a timer is good to a millisecond or so
	due := make(chan struct{})
	var scraped, odd atomic.Int64
	var all sync.WaitGroup
	for i := range s.Connections {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(s.Seed, uint64(i)))
			for range due {
				// The ids are up to 2^62, where nothing exists: hardly any is asked for twice.
				status, err := get(ctx, client, s.Products[i%len(s.Products)], 1<<32+rng.Int64N(1<<62), nil)
				switch {
				case err != nil: // nobody minds if the scraper gets no answer
				case status == http.StatusNotFound:
					scraped.Add(1)
				default:
					odd.Add(1)
				}
			}
		})
	}
	tick := time.NewTicker(time.Second / time.Duration(rounds))
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		for range s.Rate / rounds {
			select {
			case due <- struct{}{}:
			default:
			}
		}
		if n%max(1, rounds/10) == 0 {
			_ = says.Encode(catch{scraped.Load(), odd.Load()}) // nobody listens any more: the end is near
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	close(due)
	all.Wait()
	_ = says.Encode(catch{scraped.Load(), odd.Load()})
}

package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"

	"github.com/levee-go/levee/breaker"
)

// A limiter runs functions of one process.
type limiter interface {
	do(fn func(context.Context) error) error
	limit() int
}

type leveeLimit struct{ *breaker.Breaker }

func (l leveeLimit) do(fn func(context.Context) error) error { return l.Do(context.Background(), fn) }
func (l leveeLimit) limit() int                              { return l.Stats().Limit }

type failsafeLimit struct {
	adaptivelimiter.AdaptiveLimiter[any]
}

func (l failsafeLimit) do(fn func(context.Context) error) error {
	permit, err := l.AcquirePermit(context.Background())
	if err != nil {
		return err
	}
	defer permit.Record()
	return fn(context.Background())
}
func (l failsafeLimit) limit() int { return l.Limit() }

func leveeOf(least, most int) limiter {
	b, err := breaker.New(breaker.Options{MinConcurrent: least, MaxConcurrent: most, QueueTimeout: time.Hour, Timeout: -1})
	if err != nil {
		panic(err)
	}
	return leveeLimit{b}
}

func fixedOf(n int) limiter {
	b, err := breaker.New(breaker.Options{MaxConcurrent: n, QueueTimeout: time.Hour, Timeout: -1})
	if err != nil {
		panic(err)
	}
	return leveeLimit{b}
}

func failsafeOf(least, most int) limiter {
	return failsafeLimit{adaptivelimiter.NewBuilder[any]().WithLimits(uint(least), uint(most), 20).Build()}
}

// A kneeSource serves knee queries side by side, each as fast as if it were alone. More share that, and lose a tenth
// of it for each further knee. What a query takes is known when it begins: the limiters run as they are, in a bubble.
type kneeSource struct {
	name      string
	knee      float64
	work      func(*rand.Rand) float64
	slow      float64 // from 60 s to 120 s
	processes int
	best      int
}

// run returns the queries a second and the p99 of a query from 45 s on, and the limits of all processes in the end.
func (s kneeSource) run(t *testing.T, open func() limiter) (rate, p99 float64, limit int) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		rng := rand.New(rand.NewPCG(1, 7))
		began, now := time.Now(), 0
		var took []float64
		query := func(context.Context) error {
			mu.Lock()
			now++
			n, at := float64(now), time.Since(began)
			takes := s.work(rng) * max(1, n/s.knee) * (1 + 0.1*max(0, n/s.knee-1))
			if s.slow > 0 && at > time.Minute && at < 2*time.Minute {
				takes *= s.slow
			}
			mu.Unlock()
			time.Sleep(time.Duration(takes * float64(time.Second)))
			mu.Lock()
			now--
			if at > 45*time.Second {
				took = append(took, takes)
			}
			mu.Unlock()
			return nil
		}
		var callers sync.WaitGroup
		for process := range s.processes {
			callers.Go(func() {
				time.Sleep(time.Duration(process) * 20 * time.Second / time.Duration(s.processes))
				l := open()
				for range 300 / s.processes {
					callers.Go(func() {
						for time.Since(began) < 180*time.Second {
							if err := l.do(query); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				time.Sleep(179*time.Second - time.Since(began))
				mu.Lock()
				limit += l.limit()
				mu.Unlock()
			})
		}
		callers.Wait()
		slices.Sort(took)
		rate, p99 = float64(len(took))/135, took[len(took)*99/100]
	})
	return rate, p99, limit
}

func lognormal(mean float64) func(*rand.Rand) float64 {
	const sigma = 0.5
	return func(r *rand.Rand) float64 { return mean * math.Exp(sigma*r.NormFloat64()-sigma*sigma/2) }
}

func mixed(mean float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 {
		if r.Float64() < 0.1 {
			return mean / 1.9 * 10 * r.ExpFloat64()
		}
		return mean / 1.9 * r.ExpFloat64()
	}
}

// failsafe-go's adaptive limiter beside levee's, for the table of docs/internals/scaling.md:
// LEVEE_LONG=1 go test -C internal/bench -v -run TestTheLimitBesideFailsafe .
func TestTheLimitBesideFailsafe(t *testing.T) {
	if os.Getenv("LEVEE_LONG") == "" {
		t.Skip("takes two minutes: LEVEE_LONG=1")
	}
	var table strings.Builder
	for _, s := range []kneeSource{
		{"knee 20", 20, lognormal(0.05), 0, 1, 20},
		{"knee 50", 50, lognormal(0.05), 0, 1, 50},
		{"knee 200", 200, lognormal(0.05), 0, 1, 200},
		{"knee 50, ten times slower for a minute", 50, lognormal(0.02), 10, 1, 50},
		{"knee 50, noise", 50, mixed(0.05), 0, 1, 50},
		{"no knee, noise", 1e6, mixed(0.05), 0, 1, 256},
		{"knee 20", 20, lognormal(0.05), 0, 4, 5},
		{"knee 200", 200, lognormal(0.05), 0, 4, 50},
	} {
		most := 256
		if s.processes > 1 {
			most = 128
		}
		rate, p99, _ := s.run(t, func() limiter { return fixedOf(s.best) })
		lr, lp, ll := s.run(t, func() limiter { return leveeOf(2, most) })
		fr, fp, fl := s.run(t, func() limiter { return failsafeOf(2, most) })
		fmt.Fprintf(&table, "| %s | %d | %d | %.2f, %.1f, %d | %.2f, %.1f, %d |\n", s.name, s.processes, s.best, fr/rate, fp/p99, fl, lr/rate, lp/p99, ll)
	}
	t.Log("\n" + table.String())
}

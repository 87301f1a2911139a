package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// A bench runs workloads and prints their tables.
type bench struct {
	size     size
	rounds   int
	delay    time.Duration // of each reply of Redis
	profiles string        // directory; empty: none
	out      io.Writer     // for the tables
	progress io.Writer
}

// run runs the workloads one after another. A contender that fails does not stop the others.
func (b *bench) run(ctx context.Context, chosen []workload) error {
	var failed []error
	for _, w := range chosen {
		results, err := b.takeTurns(ctx, w)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failed = append(failed, err)
		b.table(w, results)
	}
	return errors.Join(failed...)
}

// results are the reports of a workload's contenders, one for each round. A contender that failed has none.
type results map[string][]report

// takeTurns has the contenders of a workload take turns.
func (b *bench) takeTurns(ctx context.Context, w workload) (results, error) {
	all, failed := results{}, map[string]error{}
	for round := range b.rounds {
		for _, i := range rand.Perm(len(w.contenders)) {
			contender := w.contenders[i]
			if failed[contender] != nil || ctx.Err() != nil {
				continue
			}
			fmt.Fprintf(b.progress, "%s, round %d: %s\n", w.name, round+1, contender)
			r, err := b.once(ctx, w, contender)
			if err != nil {
				failed[contender] = fmt.Errorf("%s of %s: %w", w.name, contender, err)
				delete(all, contender)
				continue
			}
			all[contender] = append(all[contender], r)
		}
	}
	var errs []error
	for _, err := range failed {
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}

// once runs one contender once, and looks at what else the machine did.
func (b *bench) once(ctx context.Context, w workload, contender string) (report, error) {
	before := usageNow()
	r, err := b.onItsRedis(ctx, w, contender)
	if err == nil {
		r.Counts[othersShare] = usageNow().others(before)
	}
	return r, err
}

// onItsRedis runs one contender on a Redis of its own.
func (b *bench) onItsRedis(ctx context.Context, w workload, contender string) (report, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	s, err := startServer()
	if err != nil {
		return report{}, err
	}
	defer s.stop()
	addr := s.addr
	if b.delay > 0 {
		p, err := startProxy(s.addr, b.delay)
		if err != nil {
			return report{}, err
		}
		defer p.stop()
		addr = p.addr()
	}
	tasks := make([]task, max(1, w.processes))
	for i := range tasks {
		tasks[i] = task{
			Workload: w.name, Contender: contender, Size: b.size, Process: i, Processes: len(tasks),
			Redis: addr, Direct: s.addr, Profiles: b.profiles,
		}
	}
	return together(ctx, tasks)
}

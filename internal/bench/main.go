// Bench measures levee beside its peers, on a real redis-server that it starts on the
// loopback address, and prints Markdown tables:
//
//	go run -C internal/bench . -short                     # two minutes
//	go run -C internal/bench . -work hit-bytes,arrivals -rounds 5
//	go run -C internal/bench . -work hit-bytes -delay 500us   # a Redis 0.5 ms away
//
// Each contender of a workload runs in processes of its own on a redis-server of its own.
// The contenders take turns, in another order in each round; a table shows medians over the rounds.
// The module is not part of levee: nobody who uses levee downloads its peers.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

func main() {
	if t := os.Getenv(childVariable); t != "" {
		os.Exit(childMain(t))
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	var b bench
	short := flag.Bool("short", false, "shorter measurements, and one round: about two minutes for everything")
	work := flag.String("work", "", "workloads to run, by commas; empty: all that have contenders. -list shows them")
	only := flag.String("only", "", "contenders to run, by commas; empty: all of each workload")
	list := flag.Bool("list", false, "list the workloads and their contenders")
	flag.IntVar(&b.rounds, "rounds", 0, "rounds; the tables show medians (default 3, with -short 1)")
	flag.DurationVar(&b.delay, "delay", 0, "how much longer each reply of Redis takes, through a proxy")
	flag.StringVar(&b.profiles, "profiles", "", "directory for CPU profiles of all processes")
	flag.Parse()

	b.out, b.progress = os.Stdout, os.Stderr
	b.size = full
	usual := 3
	if *short {
		b.size, usual = small, 1
	}
	b.rounds = cmp.Or(b.rounds, usual)
	chosen, err := choose(*work, *only)
	if err != nil {
		return err
	}
	if *list {
		for _, w := range slices.Concat(chosen, prices, hitRatios) {
			fmt.Printf("%-14s %s\n", w.name, strings.Join(w.contenders, ", "))
		}
		return nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	began := time.Now()
	b.heading(os.Args[1:], chosen)
	err = b.run(ctx, chosen)
	fmt.Fprintf(b.progress, "took %v\n", time.Since(began).Round(time.Second))
	if !withGoZero {
		fmt.Fprintln(b.progress, "without go-zero, which takes -tags gozero")
	}
	return err
}

// choose returns the workloads of the names given, with the contenders of the names given that are in this build.
func choose(work, only string) ([]workload, error) {
	chosen := slices.Clone(workloads)
	if work != "" {
		chosen = nil
		for name := range strings.SplitSeq(work, ",") {
			if name == "hitratio" {
				chosen = append(chosen, hitRatios...)
				continue
			}
			w, ok := findWorkload(name)
			if !ok {
				return nil, fmt.Errorf("there is no workload %q; -list shows them", name)
			}
			chosen = append(chosen, w)
		}
	}
	wanted := strings.Split(only, ",")
	for i := range chosen {
		chosen[i].contenders = slices.DeleteFunc(slices.Clone(chosen[i].contenders), func(c string) bool {
			return only != "" && !slices.Contains(wanted, c) || c == "go-zero" && !withGoZero
		})
	}
	chosen = slices.DeleteFunc(chosen, func(w workload) bool { return len(w.contenders) == 0 })
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no workload has a contender %q; -list shows them", only)
	}
	return chosen, nil
}

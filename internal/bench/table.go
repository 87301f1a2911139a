package main

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// heading says where, with what and how the tables after it were made.
func (b *bench) heading(args []string, chosen []workload) {
	fmt.Fprintf(b.out, "`go run -C internal/bench . %s` on %s\n\n", strings.Join(args, " "), time.Now().Format("2006-01-02"))
	fmt.Fprintf(b.out, "%s, %d cores for clients and Redis together; %s; %s\n\n", processor(), runtime.NumCPU(), runtime.Version(), redisVersion())
	fmt.Fprintf(b.out, "Rounds: %d. Figures are medians; in brackets the ratio to the row in bold, the median of the ratios within a round.\n", b.rounds)
	if b.delay > 0 {
		fmt.Fprintf(b.out, "Each reply of Redis takes %v longer, in a proxy.\n", b.delay)
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		var versions []string
		for _, m := range info.Deps {
			if slices.Contains(contenderModules, m.Path) {
				versions = append(versions, strings.TrimPrefix(m.Path, "github.com/")+" "+m.Version)
			}
		}
		fmt.Fprintf(b.out, "\n%s\n", strings.Join(versions, ", "))
	}
	fmt.Fprintf(b.out, "\n%s\n", strings.Join(settingsOf(chosen), "\n"))
}

// contenderModules are those whose versions belong in a heading.
var contenderModules = []string{
	"github.com/bits-and-blooms/bloom/v3",
	"github.com/bsm/redislock",
	"github.com/dgraph-io/ristretto/v2",
	"github.com/dtm-labs/rockscache",
	"github.com/go-redis/cache/v9",
	"github.com/go-redsync/redsync/v4",
	"github.com/maypok86/otter/v2",
	"github.com/redis/go-redis/v9",
	"github.com/redis/rueidis",
	"github.com/viccon/sturdyc",
	"github.com/zeromicro/go-zero",
}

// table prints the table of a workload.
func (b *bench) table(w workload, all results) {
	fmt.Fprintf(b.out, "\n### %s\n\n%s\n\n| `%s` |", w.title, w.about, w.name)
	for _, c := range w.columns {
		fmt.Fprintf(b.out, " %s |", c.name)
	}
	fmt.Fprintf(b.out, "\n|---|%s\n", strings.Repeat("---:|", len(w.columns)))
	for _, contender := range w.contenders {
		name := contender
		if contender == w.reference {
			name = "**" + name + "**"
		}
		fmt.Fprintf(b.out, "| %s |", name)
		for _, c := range w.columns {
			fmt.Fprintf(b.out, " %s |", c.cell(all[contender], all[w.reference]))
		}
		fmt.Fprintln(b.out)
	}
	if others := all.others(); len(others) > 0 {
		fmt.Fprintf(b.out, "\nOther programs took %.0f %% of the processors meanwhile, in the worst of the runs %.0f %%.\n", 100*median(others), 100*slices.Max(others))
	}
}

// others returns what other programs took of the processors in each run, where the system tells.
func (all results) others() (shares []float64) {
	for _, rounds := range all {
		for _, r := range rounds {
			if share := r.Counts[othersShare]; !math.IsNaN(share) {
				shares = append(shares, share)
			}
		}
	}
	return shares
}

// cell returns the text of a figure: its median, and that of its ratio to the reference's.
func (c column) cell(rounds, reference []report) string {
	if len(rounds) == 0 {
		return "failed"
	}
	var figures, ratios []float64
	for i, r := range rounds {
		figures = append(figures, c.of(r))
		if i < len(reference) {
			if by := c.of(reference[i]); by > 0 {
				ratios = append(ratios, c.of(r)/by)
			}
		}
	}
	text := fmt.Sprintf(c.format, median(figures))
	if c.ratio && len(ratios) > 0 {
		text += fmt.Sprintf(" (%.2f)", median(ratios))
	}
	return text
}

func median(figures []float64) float64 {
	slices.Sort(figures)
	n := len(figures)
	return (figures[(n-1)/2] + figures[n/2]) / 2
}

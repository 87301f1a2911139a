package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/levee-go/levee/examples/internal/console"
	"github.com/levee-go/levee/examples/internal/servers"
)

// Step by step: one scenario, all floods at once, against one protection more in each row. It is what docs/results.md shows:
//
//	go run -C examples ./drill -steps -markdown
var stepByStep = scene{
	title: func(s scale) string {
		return fmt.Sprintf("%v with all floods: %s reads, every fourth of one product; %s keys expire together; %s scrapes; what is loaded lives for %v",
			s.before+s.after, console.Count(int64(s.reads)), console.Count(int64(s.avalanche)), console.Count(int64(s.scrapes)), s.hotTTL)
	},
	ttl: func(s scale) time.Duration { return s.hotTTL },
	steps: append([]step{{name: "no cache", open: openNothing}},
		slices.Insert(protect(leases, nulls, filter, windows, local, limit), 1, collapsed)...),
	run:     allFloods,
	prepare: nightlyImport,
}

// stepScale has time for the import of each step, and the same load in each.
var stepScale = scale{
	processes: 4, database: databaseLoad{queryTime: 20 * time.Millisecond, connections: 20}, patience: 2 * time.Second,
	scrapes: 2000, deadLinks: 50, hotTTL: time.Second,
	avalanche: 4000, before: time.Second, after: 3 * time.Second, reads: 6400,
}

// uncached asks the database every time.
type uncached struct{ *Catalogue }

func openNothing(_ context.Context, p process) (cached, error) { return uncached{p.store}, nil }

func (c uncached) Get(ctx context.Context, id int64) (Product, error) { return c.Product(ctx, id) }
func (uncached) Set(context.Context, int64, Product) error            { return nil }
func (uncached) Write(ctx context.Context, _ []int64, tx func(context.Context) error) error {
	return tx(ctx)
}

// Close leaves the Catalogue open, which all steps share.
func (uncached) Close() error { return nil }

// allFloods lets readers and scrapers in together: every fourth read is for one product, and all that was imported expires under them.
func allFloods(ctx context.Context, t *trial) error {
	popular := rand.NewZipf(t.rng, 1.2, 10, uint64(t.size.avalanche-1))
	wanted := make([]int64, t.size.reads)
	for i := range wanted {
		wanted[i] = 1 + int64(popular.Uint64())
		if i%4 == 0 {
			wanted[i] = int64(t.size.avalanche)
		}
	}
	absent := t.absentProducts()
	if err := servers.Sleep(ctx, time.Until(t.end)-t.size.before); err != nil {
		return err
	}
	t.begin()
	length := t.size.before + t.size.after
	var both sync.WaitGroup
	both.Go(func() {
		openLoad(ctx, len(absent), length, func(i int, _ time.Time) { t.seen.scrape(ctx, t.process(i), absent[i]) })
	})
	both.Go(func() {
		openLoad(ctx, len(wanted), length, func(i int, due time.Time) { t.seen.read(ctx, t.process(i/4), wanted[i], due, nil) })
	})
	both.Wait()
	return nil
}

// chart draws the queries of the steps for a Markdown page.
func (r *report) chart(results []row) {
	if !r.markdown {
		return
	}
	var names, queries []string
	most := results[0].queries
	for _, m := range results {
		names, queries, most = append(names, fmt.Sprintf("%q", m.step)), append(queries, fmt.Sprint(m.queries)), max(most, m.queries)
	}
	// Without a range the axis begins at the shortest bar, which then looks like nothing.
	fmt.Fprintf(r.out, `
`+"```"+`mermaid
%%%%{init: {"xyChart": {"showDataLabel": true}, "themeVariables": {"xyChart": {"plotColorPalette": "#5b8fd9"}}}}%%%%
xychart-beta horizontal
    x-axis [%s]
    y-axis "database queries" 0 --> %d
    bar [%s]
`+"```\n", strings.Join(names, ", "), most, strings.Join(queries, ", "))
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/examples/internal/servers"
)

// An attack is one run: a scraper and honest users at the same processes for the same time.
type attack struct {
	site
	shops []*shop
	seed  uint64
	seen  tally
	fresh newcomers
	end   time.Time // when it is over, if all is done that is wanted at the least

	scraped  atomic.Int64 // ids that the scraper got its answer for
	odd      atomic.Int64 // other answers to the scraper than "no such product"
	made     int          // products that were to be made
	rebuilds atomic.Int64 // of the filter
}

// run lets everybody loose and returns when the last of them has got an answer.
func (a *attack) run(ctx context.Context) error {
	// Nobody is cut off at the end of the attack, but nobody hangs for ever either.
	ctx, cancel := context.WithTimeout(ctx, a.size.lasts+2*a.size.patience)
	defer cancel()
	a.end = time.Now().Add(a.size.lasts)
	users := httpClient(a.size.patience)
	defer users.CloseIdleConnections()

	var all sync.WaitGroup
	var failed error
	all.Go(func() { a.visit(ctx, users) })
	all.Go(func() { a.announce(ctx, users) })
	all.Go(func() { failed = a.scrape(ctx) })
	all.Go(func() { a.rebuild(ctx) })
	all.Wait()
	return errors.Join(failed, ctx.Err())
}

// over tells whether it is time to stop: a machine that cannot keep up gets more of it.
func (a *attack) over(ctx context.Context) bool {
	if ctx.Err() != nil {
		return true
	}
	least := a.size.least[min(a.way/filtered, 1)]
	return time.Now().After(a.end) && a.scraped.Load() >= int64(least) && (a.way < rebuilt || a.rebuilds.Load() > 0)
}

// httpClient keeps its connections, however many there are.
func httpClient(patience time.Duration) *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
}

// get asks a process for a product, below the URL of its products. It returns the status, and decodes the product if there is one and it is wanted.
func get(ctx context.Context, client *http.Client, products string, id int64, p *Product) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, products+strconv.FormatInt(id, 10), nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK && p != nil {
		err = json.NewDecoder(resp.Body).Decode(p)
	}
	_, _ = io.Copy(io.Discard, resp.Body) // so that the connection can be used again
	return resp.StatusCode, err
}

// visit sends the honest users: evenly over the attack, each on its own and whether or not the earlier ones have been answered. A few
// products are popular; every tenth visit is for one that is new.
func (a *attack) visit(ctx context.Context, client *http.Client) {
	rng := rand.New(rand.NewPCG(a.seed, 0))
	popular := rand.NewZipf(rng, 1.2, 10, uint64(a.rows-1))
	start := time.Now()
	var all sync.WaitGroup
	defer all.Wait()
	for i := range a.size.visits {
		due := start.Add(a.size.lasts * time.Duration(i) / time.Duration(a.size.visits))
		if servers.Sleep(ctx, time.Until(due)) != nil {
			return
		}
		id, at := 1+int64(popular.Uint64()), i%len(a.shops)
		if i%10 == 0 {
			if n, ok := a.fresh.random(rng); ok {
				id = n.id
				if time.Since(n.since) < 2*a.size.maxLag { // other processes may not have heard of it
					at = n.home
				}
			}
		}
		all.Go(func() { a.seen.visit(ctx, client, a.shops[at], id, due) })
	}
}

// announce makes new products while the attack is on. Users have asked for each of them before it was there, in every process.
func (a *attack) announce(ctx context.Context, client *http.Client) {
	for ; !a.over(ctx); a.made++ {
		id, home := int64(a.rows+a.made+1), a.made%len(a.shops)
		for _, h := range a.shops {
			if status, err := get(ctx, client, h.url, id, nil); err == nil && status != http.StatusNotFound {
				a.seen.failed(fmt.Errorf("status %d for a product to come", status))
			}
		}
		if err := a.make(ctx, a.shops[home], id); err != nil {
			a.seen.failed(fmt.Errorf("making a product: %w", err))
		} else {
			a.fresh.add(newcomer{id, home, time.Now()})
		}
		if servers.Sleep(ctx, a.size.newEvery) != nil {
			return
		}
	}
}

// make makes a product in a process, and tries again while its filter cannot be told of it, as long as a user would wait: on a busy machine
// Redis now and then answers late.
func (a *attack) make(ctx context.Context, home *shop, id int64) error {
	for end := time.Now().Add(a.size.patience); ; {
		begun := false
		err := home.products.Write(ctx, []int64{id}, func(ctx context.Context) error {
			begun = true
			return a.catalogue.Insert(ctx, id)
		})
		if begun || !errors.Is(err, bloom.ErrUnavailable) || time.Now().After(end) || servers.Sleep(ctx, a.size.newEvery) != nil {
			return err
		}
	}
}

// rebuild builds the filter anew, from all processes in turn, as long as the attack lasts.
func (a *attack) rebuild(ctx context.Context) {
	if a.way < rebuilt {
		return
	}
	for i := 0; !a.over(ctx); i++ {
		if err := a.shops[i%len(a.shops)].filter.Rebuild(ctx, a.catalogue.IDs(ctx)); err != nil {
			a.seen.failed(err)
			return
		}
		a.rebuilds.Add(1)
		if servers.Sleep(ctx, a.size.rebuildEvery) != nil {
			return
		}
	}
}

// A newcomer is a product made during the attack, by the process home.
type newcomer struct {
	id    int64
	home  int
	since time.Time
}

type newcomers struct {
	mu  sync.Mutex
	all []newcomer
}

func (n *newcomers) add(c newcomer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, c)
}

func (n *newcomers) random(rng *rand.Rand) (c newcomer, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.all) == 0 {
		return c, false
	}
	return n.all[rng.IntN(len(n.all))], true
}

// visit asks for a product that exists and judges the answer.
func (t *tally) visit(ctx context.Context, client *http.Client, h *shop, id int64, due time.Time) {
	var p Product
	status, err := get(ctx, client, h.url, id, &p)
	took := time.Since(due) // the user has been waiting since the visit was due
	switch {
	case err != nil:
	case status == http.StatusNotFound:
		t.missed(took)
		return
	case status != http.StatusOK:
		err = fmt.Errorf("status %d", status)
	case p.ID != id || p.Name != nameOf(id):
		err = errors.New("the answer is another product")
	}
	t.answered(took, err)
}

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

const (
	callers  = 8    // in each process
	products = 2000 // that exist
	patience = 2 * time.Second
	// stuck is how much longer than its patience a call may take on a busy machine.
	stuck = 8 * time.Second
	// bound is how old an answer of the local tier may be after an invalidation that
	// its process could not hear of: three missed heartbeats, a second of distrust, and
	// one for a busy machine.
	bound = 5 * time.Second
)

// A report is what a process has seen so far.
type report struct {
	Reads, Writes, Absent int64 // asked for; a batch of several keys is as many reads
	Batches               int64
	Errors, Unconfirmed   int64 // reads without an answer; writes whose invalidation Redis did not confirm
	Failed                int64 // transactions that failed or panicked, some after their commit
	Marked                int64 // answers marked as stale
	Uncached              int64 // reads that wanted no load, and got none
	Late, TooLate         int64 // answers older than a confirmed write, by more than 50 ms, by more than bound
	Oldest                time.Duration
	Wrong, Stuck          int64      // answers that are not the key's or break a rule of the read; calls that did not end in time
	What                  string     // of the last wrong one
	Broken                int64      // old values of the Ledger that the confirmed writes forbid
	Found                 []oldValue // since the last report
	Untold                int64      // old values that Found had no room for
	Goroutines            int
	Heap                  uint64
	Stats                 cache.Stats
}

// A service is one process: a cache on a Redis that is broken now and then, and a
// database on one that never is.
type service struct {
	name  string // which process it is, and which of those that were started in its place
	db    *redis.Client
	cache *cache.Cache[int64, product]

	mu   sync.Mutex // guards seen
	seen report
}

// serve is the process. Its arguments are the addresses of Redis and of the database, and its name.
func serve(p *redistest.Parent, args []string) error {
	rdb, db := redis.NewClient(&redis.Options{Addr: args[0]}), redis.NewClient(&redis.Options{Addr: args[1]})
	defer rdb.Close()
	defer db.Close()
	s, err := newService(args[2], rdb, db)
	if err != nil {
		return err
	}
	c := s.cache
	defer c.Close()
	ledger, err := s.ledger()
	if err != nil {
		return err
	}
	defer ledger.Close()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() {
		if err := c.Follow(ctx, changes{db}); ctx.Err() == nil {
			s.note(func(r *report) { r.Wrong++; r.What = fmt.Sprint("Follow: ", err) })
		}
	})
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				s.watched(s.call)
				time.Sleep(rand.N(4 * time.Millisecond))
			}
		})
	}
	for p.Next() == "report" {
		text, err := json.Marshal(s.report())
		if err != nil {
			return err
		}
		p.Say("report %s", text)
	}
	cancel()
	all.Wait()
	return conserved(c.Stats())
}

func newService(name string, rdb, db *redis.Client) (s *service, err error) {
	s = &service{name: name, db: db}
	s.cache, err = cache.NewFrom(rdb, cache.Source[int64, product]{
		LoadEntry: s.load, LoadMany: s.loadMany, TTL: ttl,
		Tags: func(id int64, _ product) []string { return []string{shelf(id)} },
	}, cache.Options{
		Name: "product", Schema: schema(name), NullTTL: 2 * time.Second, Logger: slog.New(slog.DiscardHandler),
		RedisTimeout: 500 * time.Millisecond, // so that a busy machine is not taken for an outage
	})
	return s, err
}

// schema is that of a rolling update, or of its rollback: a process that is started in the place of another one
// has the other of two schemas, and runs beside those that have the first.
func schema(name string) int {
	_, started, _ := strings.Cut(name, ".")
	return 1 + int(number(started))%2
}

// ttl lets half of the products, followed ones among them, live for longer than the last look of a Ledger comes
// after a change: no value of the others could be old by then, whatever went wrong.
func ttl(id int64, _ product) time.Duration {
	if id%4 >= 2 {
		return 3 * time.Minute
	}
	return 20 * time.Second
}

// conserved checks that every Get came to one end.
func conserved(n cache.Stats) error {
	if ends := n.Local + n.Redis + n.Null + n.Filter + n.Loaded + n.Joined + n.Stale + n.NotCached + n.Errors; ends != n.Gets {
		return fmt.Errorf("%d of %d Gets came to an end: %+v", ends, n.Gets, n)
	}
	return nil
}

func (s *service) report() report {
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.Heap, s.seen.Goroutines, s.seen.Stats = memory.HeapAlloc, goroutines(), s.cache.Stats()
	seen := s.seen
	s.seen.Found = nil
	return seen
}

// goroutines counts all goroutines but the watches of a Ledger. There is one for each key that has changed in the
// last minute, up to 1,024, so their number says how fast the run writes.
func goroutines() (n int) {
	records := make([]runtime.StackRecord, 2*runtime.NumGoroutine()+100)
	got, _ := runtime.GoroutineProfile(records)
	for _, r := range records[:got] {
		watch := false
		for frames, more := runtime.CallersFrames(r.Stack()), true; more && !watch; {
			var frame runtime.Frame
			frame, more = frames.Next()
			watch = strings.Contains(frame.Function, "audit.(*Ledger[...]).watch")
		}
		if !watch {
			n++
		}
	}
	return n
}

func (s *service) note(change func(*report)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.seen)
}

// A product counts its writes.
type product struct{ ID, Version int64 }

var errSource, errRefused = errors.New("the source fails"), errors.New("the transaction fails")

// load reads a product from the database. What is not there does not exist.
func (s *service) load(ctx context.Context, id int64, e *cache.Entry[product]) (product, error) {
	version, err := s.db.Get(ctx, row(id)).Int64()
	switch {
	case rand.IntN(100) == 0:
		return product{}, errSource
	case errors.Is(err, redis.Nil):
		return product{}, cache.ErrNotFound
	case err == nil && e.Prev != nil && e.Version == strconv.FormatInt(version, 10):
		return product{}, cache.ErrNotModified
	}
	e.Version = strconv.FormatInt(version, 10)
	return product{id, version}, err
}

// loadMany is load for several products, in one round trip.
func (s *service) loadMany(ctx context.Context, ids []int64) (map[int64]product, error) {
	rows := make([]string, len(ids))
	for i, id := range ids {
		rows[i] = row(id)
	}
	versions, err := s.db.MGet(ctx, rows...).Result()
	if rand.IntN(100) == 0 {
		err = errSource
	}
	if err != nil {
		return nil, err
	}
	found := map[int64]product{}
	for i, id := range ids {
		if versions[i] != nil {
			found[id] = product{id, number(versions[i])}
		}
	}
	return found, nil
}

func shelf(id int64) string { return "shelf:" + strconv.FormatInt(id%100, 10) }

func row(id int64) string { return "row:" + strconv.FormatInt(id, 10) }

// watched counts a call if it hangs.
func (s *service) watched(call func()) {
	var over atomic.Bool
	watch := time.AfterFunc(patience+stuck, func() {
		if !over.Load() {
			s.note(func(r *report) { r.Stuck++ })
		}
	})
	defer watch.Stop()
	defer over.Store(true)
	call()
}

// call is one of: a write, a scraper's question, a batch, a read.
func (s *service) call() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	id := popular()
	switch n := rand.IntN(100); {
	case n == 0:
		s.write(ctx, id)
	case n <= 5:
		_, err := s.cache.Get(ctx, 1<<32+rand.Int64N(1<<40))
		s.note(func(r *report) {
			r.Absent++
			if err == nil {
				r.Wrong++
			}
		})
	case n <= 25:
		s.readMany(ctx)
	default:
		s.read(ctx, id)
	}
}

// popular draws a product; the first ones are asked for most.
func popular() int64 { return int64(products * rand.Float64() * rand.Float64()) }

// write is a transaction and what ends the old value, in one of the ways that there are. Once that
// is confirmed the database notes the version, and since when nobody may read an older one.
func (s *service) write(ctx context.Context, id int64) {
	var version int64
	how := rand.IntN(240)
	commit := func(ctx context.Context) (err error) {
		version, err = commitTold.Run(ctx, s.db, []string{row(id)}, id, kind(how), s.name).Int64()
		return err
	}
	var err error
	switch {
	case followed(id):
		how = 0
		var confirmed bool
		if version, confirmed = s.writeBeside(ctx, id); !confirmed {
			err = cache.ErrNotInvalidated
		}
	case how >= failing:
		s.failingWrite(ctx, id, commit)
		s.settle(id, version, errRefused, false)
		return
	default:
		err = s.end(ctx, how, id, commit)
	}
	s.note(func(r *report) {
		r.Writes++
		if err != nil {
			r.Unconfirmed++
		}
	})
	s.settle(id, version, err, how < clears)
}

// failingWrite is a Write whose transaction fails or panics, before its commit or after it. It confirms
// nothing: nobody knows whether it has committed.
func (s *service) failingWrite(ctx context.Context, id int64, commit func(context.Context) error) {
	commits, panics := rand.IntN(2) == 0, rand.IntN(4) == 0
	defer func() {
		if _, ok := recover().(error); ok != panics && ctx.Err() == nil {
			s.note(func(r *report) { r.Wrong++; r.What = "the panic of a transaction is not its Write's" })
		}
	}()
	err := s.cache.Write(ctx, []int64{id}, func(ctx context.Context) error {
		if commits {
			if err := commit(ctx); err != nil {
				return err
			}
		}
		if panics {
			panic(errRefused)
		}
		return errRefused
	})
	s.note(func(r *report) {
		r.Writes, r.Failed = r.Writes+1, r.Failed+1
		if !errors.Is(err, errRefused) && ctx.Err() == nil {
			r.Wrong++
			r.What = fmt.Sprint("a Write whose transaction fails: ", err)
		}
	})
}

const (
	clears  = 60  // below it: one message ends old values, in Redis as in the memory of other processes
	failing = 200 // from here on: failingWrite
)

// byFeed is the kind of the changes that writeBeside makes.
const byFeed = "change told by the feed"

// kind names what end does.
func kind(how int) string {
	switch {
	case how >= failing:
		return "Write whose transaction fails"
	case how >= 140:
		return "Write"
	case how == 0:
		return "Clear"
	case how < 30:
		return "Write of a tag"
	case how < clears:
		return "ClearTags"
	case how < 90:
		return "Expire"
	case how < 110:
		return "Refresh"
	}
	return "Invalidate"
}

// end commits and ends the old value.
func (s *service) end(ctx context.Context, how int, id int64, commit func(context.Context) error) error {
	switch {
	case how >= 140:
		return s.cache.Write(ctx, []int64{id}, commit)
	case how == 0, how >= 30 && how < clears, how >= clears:
		if err := commit(ctx); err != nil {
			return err
		}
	}
	switch {
	case how == 0:
		return s.cache.Clear(ctx)
	case how < 30:
		return cache.Write(ctx, commit, s.cache.Tagged(shelf(id)))
	case how < clears:
		return s.cache.ClearTags(ctx, "none", shelf(id))
	case how < 90:
		return s.cache.Expire(ctx, id)
	case how < 110:
		return s.cache.Refresh(ctx, id)
	}
	return s.cache.Invalidate(ctx, id)
}

// confirm keeps the newest version only: of two writers the later one may come first.
var confirm = redis.NewScript(`
local last = redis.call('HGET', KEYS[1], 'version')
if not last or tonumber(last) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'since', ARGV[2], 'cleared', ARGV[3])
end
return 1`)

// A confirmation is the newest version of a row that is confirmed, and since when.
type confirmation struct {
	Version int64
	Since   time.Time
	Cleared bool // with others, by one message
}

func (s *service) confirmed(ctx context.Context, id int64) (confirmation, error) {
	values, err := s.db.HMGet(ctx, "confirmed:"+row(id), "version", "since", "cleared").Result()
	if err != nil {
		return confirmation{}, err
	}
	return confirmation{number(values[0]), time.UnixMicro(number(values[1])), number(values[2]) == 1}, nil
}

// rules are those of one read in three; the others have none.
func rules() cache.Reads {
	var all = []cache.Reads{
		{SkipLocal: true}, {NoLoad: true}, {NoStale: true}, {MaxAge: time.Second},
		{MaxAge: 300 * time.Millisecond, NoStale: true}, {SkipLocal: true, NoLoad: true},
	}
	if n := rand.IntN(3 * len(all)); n < len(all) {
		return all[n]
	}
	return cache.Reads{}
}

// read compares an answer with what had been confirmed before it was asked for.
func (s *service) read(ctx context.Context, id int64) {
	newest, err := s.confirmed(ctx, id)
	if err != nil {
		return // a machine too busy for its own database says nothing about the cache
	}
	asked, rules := time.Now(), rules()
	fetch := s.cache.Fetch
	if rules != (cache.Reads{}) {
		fetch = s.cache.With(rules).Fetch
	}
	got, err := fetch(ctx, id)
	s.note(func(r *report) { r.answer(id, got, err, newest, asked, rules) })
}

// readMany is read for a batch.
func (s *service) readMany(ctx context.Context) {
	newest := map[int64]confirmation{}
	var ids []int64
	for range 2 + rand.IntN(30) {
		id := popular()
		one, err := s.confirmed(ctx, id)
		if err != nil {
			return
		}
		newest[id] = one
		ids = append(ids, id)
	}
	asked, rules := time.Now(), rules()
	fetch := s.cache.FetchMany
	if rules != (cache.Reads{}) {
		fetch = s.cache.With(rules).FetchMany
	}
	values, err := fetch(ctx, ids)
	var batch *cache.BatchError[int64]
	if err != nil && !errors.As(err, &batch) {
		s.note(func(r *report) { r.Wrong++ })
		return
	}
	s.note(func(r *report) {
		r.Batches++
		for id, one := range newest {
			value, ok := values[id]
			var err error
			switch {
			case ok:
			case batch != nil && batch.Causes[id] != nil:
				err = batch.Causes[id]
			default:
				err = cache.ErrNotFound
			}
			r.answer(id, value, err, one, asked, rules)
		}
	})
}

// answer counts an answer.
func (r *report) answer(id int64, got cache.Result[product], err error, newest confirmation, asked time.Time, rules cache.Reads) {
	r.Reads++
	late, bound := asked.Sub(newest.Since), bound
	if rules.SkipLocal && !newest.Cleared {
		bound = 0
	}
	took := time.Since(asked) // the value may have aged since it was chosen
	switch {
	case errors.Is(err, cache.ErrNotCached) && rules.NoLoad:
		r.Uncached++
	case errors.Is(err, cache.ErrNotFound), err == nil && got.Value.ID != id:
		r.Wrong++
		r.What = fmt.Sprintf("%d gives %+v, %v", id, got, err)
	case err != nil:
		r.Errors++
	case got.Stale && rules.NoStale, !got.Stale && rules.MaxAge > 0 && got.Age > rules.MaxAge+took+10*time.Millisecond:
		r.Wrong++
		r.What = fmt.Sprintf("%+v gives %+v after %v", rules, got, took)
	case got.Stale:
		r.Marked++
	case got.Value.Version < newest.Version:
		r.Oldest = max(r.Oldest, late)
		if late > bound {
			r.TooLate++
			r.found(oldValue{id, got.Value.Version, newest.Version, got.Tier.String(), got.Age, newest.Since, late, asked, newest, false, true})
		} else if late > 50*time.Millisecond {
			r.Late++
		}
	}
}

func number(v any) int64 {
	text, _ := v.(string)
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

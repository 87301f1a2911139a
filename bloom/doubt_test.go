package bloom_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

var names = keys.BloomFilter("product")

// piecesOf names the pieces of the snapshot in use.
func piecesOf(t testing.TB, rdb redis.UniversalClient) string {
	t.Helper()
	pieces, err := rdb.HGet(context.Background(), names.Record(), "pieces").Result()
	if err != nil || pieces == "" {
		t.Fatalf("no snapshot in use: %q, %v", pieces, err)
	}
	return names.Pieces(pieces)
}

// quick makes a filter that notices soon what happens.
func quick(o *bloom.Options) { o.MaxLag = 300 * time.Millisecond }

func TestAFilterThatWasFlushedAbstainsUntilItIsRebuilt(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	for _, c := range []struct {
		name string
		lose func()
	}{
		{"FLUSHALL", func() { rdb.FlushAll(context.Background()) }},
		{"restart", s.Restart},
		{"expiry", func() { rdb.Del(context.Background(), names.Record()) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			rdb.FlushAll(context.Background())
			var log redistest.Log
			logged := func(o *bloom.Options) { o.Logger = log.Logger() }
			a, b := open(t, s.Client(t), quick), open(t, s.Client(t), quick, logged)
			const says = "it abstains until the next Rebuild"
			log.Await(t, says) // it is new
			rebuild(t, a, 0, 1000)
			answers(t, b)
			const follows = "follows redis again"
			redistest.Eventually(t, 20*time.Second, "a rebuilt filter needs no Rebuild", func() bool {
				return !b.Stats().NeedsRebuild && log.Count(follows) > 0
			})
			said := log.Count(says) // more than once where a reply to the new filter was late
			c.lose()
			abstains(t, a)
			abstains(t, b)
			redistest.Eventually(t, 20*time.Second, "its copy is gone", func() bool { return !b.Stats().Complete })
			followed := log.Count(follows)
			add(t, b, 1000, 1010) // Add makes the record again
			time.Sleep(2 * 300 * time.Millisecond)
			abstains(t, a) // which is no reason to believe in it
			abstains(t, b)
			redistest.Eventually(t, 20*time.Second, "Stats and log say that it needs a Rebuild", func() bool {
				return a.Stats().NeedsRebuild && b.Stats().NeedsRebuild && log.Count(says) > said
			})
			if log.Count(follows) != followed {
				t.Errorf("an abstaining filter follows again:\n%s", &log)
			}
			rebuild(t, b, 0, 1000)
			answers(t, a)
			answers(t, b)
			if n := missing(a, 0, 1000) + missing(b, 0, 1000); n > 0 {
				t.Errorf("%d ids denied after the Rebuild", n)
			}
		})
	}
}

// What is corrupt when a process comes to load it makes that process abstain, until one that
// has a copy has written a new snapshot, or until the next Rebuild. It never makes an Add
// fail.
func TestWhatIsCorruptIsNotBelieved(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	piece := func(change func(string) string) func(stored) {
		return func(is stored) { is.rdb.HSet(ctx, is.pieces, "0", change(is.rdb.HGet(ctx, is.pieces, "0").Val())) }
	}
	record := func(field string, change func(is stored, s string) string) func(stored) {
		return func(is stored) {
			is.rdb.HSet(ctx, names.Record(), field, change(is, is.rdb.HGet(ctx, names.Record(), field).Val()))
		}
	}
	flipped := func(s string) string { return s[:20] + string([]byte{s[20] ^ 1}) + s[21:] }
	for _, c := range []struct {
		name    string
		heals   bool // a process that has a copy writes a new snapshot
		corrupt func(is stored)
	}{
		{"a bit", true, piece(flipped)},
		{"truncated", true, piece(func(s string) string { return s[:len(s)-1000] })},
		{"piece gone", true, func(is stored) { is.rdb.HDel(ctx, is.pieces, "0") }},
		{"all pieces gone", true, func(is stored) { is.rdb.Del(ctx, is.pieces) }},
		{"pieces of another type", true, func(is stored) { is.rdb.Del(ctx, is.pieces); is.rdb.LPush(ctx, is.pieces, "x") }},
		{"the pieces of another snapshot", true, record("pieces", func(is stored, _ string) string { return is.oldPieces })},
		{"a name that is none", true, record("pieces", func(stored, string) string { return "}{" })},
		{"an entry that is no longer in the log", true, record("at", func(is stored, _ string) string { return is.oldAt })},
		{"an entry that is none", false, record("at", func(stored, string) string { return "1" })},
		{"the shape", false, record("shape", func(_ stored, s string) string { return flipped(s) })},
		{"the header", false, record("header", func(_ stored, s string) string { return flipped(s) })},
		{"record of another type", false, func(is stored) { is.rdb.Del(ctx, names.Record()); is.rdb.Set(ctx, names.Record(), "x", 0) }},
		{"a record without a header", false, func(is stored) { is.rdb.HDel(ctx, names.Record(), "header") }},
		{"a record without its newest entry", false, func(is stored) { is.rdb.HDel(ctx, names.Record(), "last") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			rdb := s.Client(t)
			const n = 1000
			a := open(t, s.Client(t), quick)
			rebuild(t, a, 0, n/2)
			is := stored{rdb: rdb, oldPieces: rdb.HGet(ctx, names.Record(), "pieces").Val(), oldAt: rdb.HGet(ctx, names.Record(), "at").Val()}
			add(t, a, 10_000, 10_100)
			rebuild(t, a, 0, n)
			hasRead(t, a)
			rdb.XTrimMaxLen(ctx, names.Log(), 50)
			is.pieces = piecesOf(t, rdb)
			c.corrupt(is)

			b := open(t, s.Client(t), quick)
			for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if d := missing(b, 0, n); d > 0 {
					t.Fatalf("%d ids denied by a filter that loaded it", d)
				}
			}
			if c.heals {
				answers(t, b)
				denies(t, b, 1e6, 1e6+1000, 0.1)
			}
			for _, f := range []*bloom.Filter{a, b} {
				if err := f.Add(ctx, "fresh"); err != nil {
					t.Errorf("Add fails: %v", err)
				}
				if d := missing(f, 0, n); d > 0 || !f.MayContain(ctx, "fresh") {
					t.Errorf("%d ids denied", d)
				}
			}
			rebuild(t, b, 0, n)
			answers(t, a)
			answers(t, b)
			if d := missing(a, 0, n) + missing(b, 0, n); d > 0 {
				t.Errorf("%d ids denied after the Rebuild", d)
			}
		})
	}
}

// stored is what Redis has of a filter that was rebuilt twice, with adds in between.
type stored struct {
	rdb              *redis.Client
	pieces           string // the key of those in use
	oldPieces, oldAt string // of the snapshot before
}

// A log that ends, or goes on elsewhere, has lost adds for those who follow it, and nobody
// has them all. It makes nobody deny an id: all abstain until the next Rebuild.
func TestALogThatIsBrokenIsNotFollowed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, c := range []struct {
		name string
		cut  func(rdb *redis.Client)
	}{
		{"gone", func(rdb *redis.Client) { rdb.Del(ctx, names.Log()) }},
		{"of another type", func(rdb *redis.Client) { rdb.Del(ctx, names.Log()); rdb.Set(ctx, names.Log(), "x", 0) }},
		{"cut off", func(rdb *redis.Client) { rdb.XTrimMaxLen(ctx, names.Log(), 1) }},
		{"without some entries", func(rdb *redis.Client) {
			for _, entry := range rdb.XRevRangeN(ctx, names.Log(), "+", "-", 50).Val() {
				rdb.XDel(ctx, names.Log(), entry.ID)
			}
		}},
		{"without its end", func(rdb *redis.Client) {
			rdb.XDel(ctx, names.Log(), rdb.XRevRangeN(ctx, names.Log(), "+", "-", 1).Val()[0].ID)
		}},
		{"with a hash of another length", func(rdb *redis.Client) {
			rdb.XAdd(ctx, &redis.XAddArgs{Stream: names.Log(), Values: []string{"h", "short"}})
			time.Sleep(5 * time.Millisecond) // the next entry needs a later time
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			p := redistest.Proxy(t, s.Addr())
			a, b := open(t, s.Client(t), quick), open(t, p.Client(t), quick)
			rebuild(t, a, 0, 1000)
			answers(t, b)
			p.Blackhole(true)
			add(t, a, 1000, 1100)
			c.cut(s.Client(t))
			add(t, a, 1100, 1200)
			p.Blackhole(false)
			for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if missing(a, 0, 1200) > 0 {
					t.Fatal("denied where it was added")
				}
				if b.Stats().Loads > 1 && missing(b, 0, 1200) > 0 {
					t.Fatal("denied elsewhere")
				}
			}
			// A busy machine may give a the time to read what it has added before that is cut. Then it has
			// all, and writes a snapshot with which b goes on.
			healed := false
			redistest.Eventually(t, 30*time.Second, "both say that they need a Rebuild, or both have all", func() bool {
				healed = b.Stats().Loads > 1 && !a.Stats().Abstaining && !b.Stats().Abstaining
				return healed || a.Stats().NeedsRebuild && b.Stats().NeedsRebuild
			})
			if healed {
				if n := missing(a, 0, 1200) + missing(b, 0, 1200); n > 0 {
					t.Errorf("%d ids denied", n)
				}
				return
			}
			abstains(t, a)
			abstains(t, b)
			ifOlder(t, b, time.Hour, true) // however young the snapshot is
			rebuild(t, b, 0, 1200)
			answers(t, a)
			if n := missing(a, 0, 1200) + missing(b, 0, 1200); n > 0 {
				t.Errorf("%d ids denied", n)
			}
		})
	}
}

// The link swallows everything: nothing comes, not even an error. Without a look at
// the clock the filter would deny what others add meanwhile.
func TestAFilterWithoutNewsAbstainsAfterMaxLag(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	a, b := open(t, s.Client(t), quick), open(t, p.Client(t), quick)
	rebuild(t, a, 0, 1000)
	answers(t, b)
	for _, fault := range []func(){
		func() { p.Blackhole(true) },
		func() { p.Refuse(true); p.Cut() },
		func() { p.Limit(0) },
	} {
		fault()
		time.Sleep(301 * time.Millisecond)
		add(t, a, 1000, 1100)
		if n := missing(b, 0, 1100) + missing(b, 1e6, 1e6+1000); n > 0 {
			t.Errorf("%d denied behind a link that is silent", n)
		}
		if !b.Stats().Abstaining {
			t.Error("Stats do not say so")
		}
		p.Heal()
		answers(t, b)
		if n := missing(b, 0, 1100); n > 0 {
			t.Errorf("%d denied when the link is back", n)
		}
	}
}

// A process that is stopped knows nothing of what is added meanwhile, and no timer
// of its own runs before the question that it was about to ask.
func TestAProcessThatWasStoppedDoesNotDenyFromMemory(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a := open(t, s.Client(t), quick)
	rebuild(t, a, 0, 1000)
	c := redistest.Child(t, "asker", s.Addr())
	c.Expect("answers")
	for i := range 5 {
		id := idOf(2_000_000 + i)
		c.Send("%s", id)
		c.Expect("asking")
		c.Stop()
		if err := a.Add(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		added := time.Now()
		time.Sleep(310 * time.Millisecond)
		c.Cont()
		var no bool
		var begun int64
		if _, err := fmt.Sscan(c.Expect(""), &no, &begun); err != nil {
			t.Fatal(err)
		}
		if late := time.Unix(0, begun).Sub(added); no && late > 300*time.Millisecond {
			t.Errorf("denied %v after it was added", late)
		}
	}
}

// asker asks for the ids that it is told, over and over, until it was stopped and
// was not.
func asker(p *redistest.Parent, args []string) error {
	rdb := redis.NewClient(&redis.Options{Addr: args[0]})
	defer rdb.Close()
	o := sharedOptions(quick)
	f, err := bloom.Open(context.Background(), rdb, o)
	if err != nil {
		return err
	}
	defer f.Close()
	for f.Stats().Abstaining {
		time.Sleep(time.Millisecond)
	}
	p.Say("answers")
	for range 5 {
		id := p.Next()
		last := time.Now()
		p.Say("asking")
		for {
			begun := time.Now()
			no := !f.MayContain(context.Background(), id)
			if time.Since(last) > o.MaxLag { // it was stopped, before it asked or meanwhile
				p.Say("%v %d", no, begun.UnixNano())
				break
			}
			last = begun
		}
	}
	return nil
}

// In front of a Redis that lost its scripts or its connections nothing is noticed.
func TestLostScriptsAndConnectionsDoNotShow(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	a, b := open(t, s.Client(t)), open(t, s.Client(t))
	rebuild(t, a, 0, 1000)
	answers(t, b)
	for i := range 30 {
		if i%2 == 0 {
			rdb.ScriptFlush(t.Context())
		} else {
			rdb.ClientKillByFilter(t.Context(), "SKIPME", "yes")
		}
		add(t, a, 1000+i, 1001+i)
		redistest.Eventually(t, 30*time.Second, "the other finds it", func() bool { return missing(b, 1000+i, 1001+i) == 0 })
	}
	if !a.Stats().Complete || b.Stats().Loads > 1 {
		t.Errorf("they have lost their copies: %+v, %+v", a.Stats(), b.Stats())
	}
	answers(t, a)
	denies(t, b, 1e6, 1e6+10_000, 0.02)
}

// Announcements only make it faster.
func TestWithoutAnnouncementsAddsAreFoundWithinMaxLag(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	a, b := open(t, s.Client(t)), open(t, p.Client(t))
	rebuild(t, a, 0, 1000)
	answers(t, b)
	p.DropMessages(true)
	for i := range 5 {
		add(t, a, 1000+i, 1001+i)
		time.Sleep(time.Second)
		if missing(b, 1000+i, 1001+i) > 0 && !b.Stats().Abstaining {
			t.Error("not found within MaxLag")
		}
	}
}

// A failover may lose adds that were acknowledged. The process that made them puts
// them back when it notices, and goes on saying yes.
func TestAddsThatRedisLostAreAddedAgain(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	a, b := open(t, s.Client(t), quick), open(t, s.Client(t), quick)
	rebuild(t, a, 0, 1000)
	answers(t, b)
	pieces := piecesOf(t, rdb)
	before := map[string]string{}
	for _, key := range []string{names.Record(), names.Log(), pieces} {
		before[key] = rdb.Dump(ctx, key).Val()
	}
	add(t, a, 1000, 1100)
	redistest.Eventually(t, time.Second, "the other finds them", func() bool { return missing(b, 1000, 1100) == 0 })
	p := rdb.TxPipeline()
	for key, data := range before {
		p.RestoreReplace(ctx, key, time.Hour, data)
	}
	if _, err := p.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	add(t, b, 2000, 2001) // the other history goes on
	redistest.Eventually(t, 30*time.Second, "both have noticed", func() bool {
		return a.Stats().Loads > 1 && b.Stats().Loads > 1 && missing(b, 1000, 1100) == 0
	})
	if n := missing(a, 1000, 1100) + missing(b, 0, 1100) + missing(a, 2000, 2001); n > 0 {
		t.Errorf("%d ids denied", n)
	}
}

func TestEveryKeyEndsByItself(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	f := open(t, s.Client(t))
	check := func() {
		t.Helper()
		for _, key := range rdb.Keys(t.Context(), "*").Val() {
			if ttl := rdb.PTTL(t.Context(), key).Val(); ttl <= 0 {
				t.Errorf("%q lives %v", key, ttl)
			}
		}
	}
	check()
	add(t, f, 0, 10)
	check()
	rebuild(t, f, 0, 1000)
	rebuild(t, f, 0, 1000)
	add(t, f, 1000, 1010)
	check()
	if n := len(rdb.Keys(t.Context(), "*").Val()); n != 3 { // record, log, snapshot
		t.Errorf("%d keys: %q", n, rdb.Keys(t.Context(), "*").Val())
	}
}

func TestOpenNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	first := open(t, rdb)
	rebuild(t, first, 0, 100)
	for _, c := range []struct {
		change func(*bloom.Options)
		want   string
	}{
		{func(o *bloom.Options) { o.Name = "" }, "bloom: Name"},
		{func(o *bloom.Options) { o.Capacity = 0 }, "bloom: Capacity"},
		{func(o *bloom.Options) { o.FalsePositiveRate = 1 }, "bloom: FalsePositiveRate"},
		{func(o *bloom.Options) { o.MaxLag = time.Millisecond }, "bloom: MaxLag"},
		{func(o *bloom.Options) { o.Counting = true }, "bloom: a shared filter does not count: Rebuild it"},
		{func(o *bloom.Options) { o.Secret = make([]byte, 8) }, "bloom: Secret"},
		{func(o *bloom.Options) { o.Secret = make([]byte, 16) }, bloom.ErrParameters.Error()},
	} {
		o := sharedOptions(c.change)
		f, err := bloom.Open(t.Context(), rdb, o)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("got %v, want %s…", err, c.want)
		}
		_ = f.Close()
	}
	if _, err := bloom.Open(t.Context(), (*redis.Client)(nil), sharedOptions()); err == nil {
		t.Error("a nil client is accepted")
	}
	if !first.MayContain(t.Context(), idOf(1)) || !first.Stats().Complete {
		t.Error("the others have spoilt the filter")
	}
	answers(t, first)
}

func TestASecretIsAskedFor(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	secret := func(c byte) func(*bloom.Options) {
		return func(o *bloom.Options) { o.Secret = []byte(strings.Repeat(string(c), 16)) }
	}
	a, b := open(t, s.Client(t), secret('a')), open(t, s.Client(t), secret('a'))
	rebuild(t, a, 0, 100)
	answers(t, b)
	if missing(b, 0, 100) > 0 {
		t.Error("the same secret does not fit")
	}
	for _, change := range []func(*bloom.Options){secret('b'), func(*bloom.Options) {}} {
		if _, err := bloom.Open(t.Context(), s.Client(t), sharedOptions(change)); !errors.Is(err, bloom.ErrParameters) {
			t.Errorf("opened with another secret: %v", err)
		}
	}
}

// Redis is away when the process starts: that is no reason not to.
func TestOpenWithoutRedisAbstainsAndGoesOnTrying(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	a := open(t, s.Client(t), quick)
	rebuild(t, a, 0, 1000)
	p.Refuse(true)
	b := open(t, p.Client(t), quick)
	abstains(t, b)
	if err := b.Add(t.Context(), "x"); !errors.Is(err, bloom.ErrUnavailable) {
		t.Errorf("Add: %v", err)
	}
	p.Refuse(false)
	answers(t, b)

	p.Blackhole(true)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := bloom.Open(ctx, p.Client(t), sharedOptions()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open when its ctx ends: %v", err)
	}
	if err := b.Add(ctx, "x"); !errors.Is(err, bloom.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Add when its ctx ends: %v", err)
	}
}

func TestAClosedSharedFilterAbstains(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	f := open(t, s.Client(t))
	rebuild(t, f, 0, 100)
	denies(t, f, 1e6, 1e6+1000, 0.1)
	for range 2 {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if missing(f, 1e6, 1e6+1000) > 0 {
		t.Error("denies after Close")
	}
	if err := f.Add(t.Context(), "x"); !errors.Is(err, bloom.ErrClosed) {
		t.Errorf("Add: %v", err)
	}
	if err := f.Rebuild(t.Context(), numbered(0, 1)); !errors.Is(err, bloom.ErrClosed) {
		t.Errorf("Rebuild: %v", err)
	}
	if err := f.Remove(t.Context(), "x"); !errors.Is(err, bloom.ErrNotCounting) {
		t.Errorf("Remove: %v", err)
	}
}

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

// pieceOf names the first piece of the generation in use, and its sums.
func pieceOf(t testing.TB, rdb redis.UniversalClient) (piece, sums string) {
	t.Helper()
	current, err := rdb.HGet(context.Background(), names.Record(), "current").Result()
	if err != nil || current == "" {
		t.Fatalf("no generation in use: %q, %v", current, err)
	}
	return names.Piece(current, 0), names.Sums(current)
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
			redistest.Eventually(t, 20*time.Second, "a rebuilt filter needs no Rebuild", func() bool {
				return !b.Stats().NeedsRebuild && log.Count("follows redis again") == 1
			})
			c.lose()
			abstains(t, a)
			abstains(t, b)
			add(t, b, 1000, 1010) // Add makes the record again
			time.Sleep(2 * 300 * time.Millisecond)
			abstains(t, a) // which is no reason to believe in it
			abstains(t, b)
			redistest.Eventually(t, 20*time.Second, "Stats and log say that it needs a Rebuild", func() bool {
				return a.Stats().NeedsRebuild && b.Stats().NeedsRebuild && log.Count(says) == 2
			})
			if n := log.Count("follows redis again"); n != 1 {
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

// What is corrupt when a process comes to load it makes that process abstain. It
// never makes an Add fail, and the next Rebuild makes good for it.
func TestWhatIsCorruptIsNotBelieved(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := context.Background()
	flip := func(key string, at int64, bits byte) {
		b, err := rdb.GetRange(ctx, key, at, at).Bytes()
		if err != nil || len(b) != 1 {
			t.Fatalf("byte %d of %s: %q, %v", at, key, b, err)
		}
		rdb.SetRange(ctx, key, at, string([]byte{b[0] ^ bits}))
	}
	var old string // the generation before
	for _, c := range []struct {
		name    string
		corrupt func(piece, sums string)
	}{
		{"the name of the old generation", func(string, string) { rdb.HSet(ctx, names.Record(), "current", old) }},
		{"a bit", func(piece, _ string) { flip(piece, 100, 0x10) }},
		{"a byte, with as many bits set", func(piece, _ string) {
			for at := int64(0); ; at++ { // one whose halves differ
				b, _ := rdb.GetRange(ctx, piece, at, at).Bytes()
				if b[0]>>4 != b[0]&15 {
					rdb.SetRange(ctx, piece, at, string([]byte{b[0]<<4 | b[0]>>4}))
					return
				}
			}
		}},
		{"truncated", func(piece, _ string) {
			b, _ := rdb.Get(ctx, piece).Result()
			rdb.Set(ctx, piece, b[:len(b)-1000], 0)
		}},
		{"piece gone", func(piece, _ string) { rdb.Del(ctx, piece) }},
		{"piece of another type", func(piece, _ string) { rdb.Del(ctx, piece); rdb.LPush(ctx, piece, "x") }},
		{"sums gone", func(_, sums string) { rdb.Del(ctx, sums) }},
		{"sums of another type", func(_, sums string) { rdb.Set(ctx, sums, "x", 0) }},
		{"a sum", func(_, sums string) { rdb.HIncrBy(ctx, sums, "w0", 1) }},
		{"a count", func(_, sums string) { rdb.HIncrBy(ctx, sums, "n0", 1) }},
		{"a sum that is no number", func(_, sums string) { rdb.HSet(ctx, sums, "n0", "many", "n", "") }},
		{"the name of the generation", func(string, string) { rdb.HSet(ctx, names.Record(), "current", "another") }},
		{"a name with braces", func(string, string) { rdb.HSet(ctx, names.Record(), "current", "}{") }},
		{"the header", func(string, string) {
			h, _ := rdb.HGet(ctx, names.Record(), "header").Result()
			rdb.HSet(ctx, names.Record(), "header", h[:20]+string([]byte{h[20] ^ 1})+h[21:])
		}},
		{"record of another type", func(string, string) { rdb.Del(ctx, names.Record()); rdb.Set(ctx, names.Record(), "x", 0) }},
		{"a record without a header", func(string, string) { rdb.HDel(ctx, names.Record(), "header") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			rdb.FlushAll(ctx)
			a := open(t, s.Client(t), quick)
			rebuild(t, a, 0, 5_000)
			old = rdb.HGet(ctx, names.Record(), "current").Val()
			rebuild(t, a, 0, 10_000)
			c.corrupt(pieceOf(t, rdb))

			b := open(t, s.Client(t), quick)
			for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
				if missing(b, 1e6, 1e6+100) > 0 {
					t.Fatal("a filter that loaded it denies")
				}
			}
			for _, f := range []*bloom.Filter{a, b} {
				if err := f.Add(ctx, "fresh"); err != nil {
					t.Errorf("Add fails: %v", err)
				}
				if n := missing(f, 0, 10_000); n > 0 || !f.MayContain(ctx, "fresh") {
					t.Errorf("%d ids denied", n)
				}
			}
			rebuild(t, b, 0, 10_000)
			answers(t, a)
			answers(t, b)
			if n := missing(a, 0, 10_000) + missing(b, 0, 10_000); n > 0 {
				t.Errorf("%d ids denied after the Rebuild", n)
			}
		})
	}
}

// A log that ends, or goes on elsewhere, has lost adds for those who follow it; the
// table has them. It makes nobody refuse an id, and they answer again by themselves.
func TestALogThatIsBrokenIsNotFollowed(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := context.Background()
	for _, c := range []struct {
		name string
		cut  func()
	}{
		{"gone", func() { rdb.Del(ctx, names.Log()) }},
		{"of another type", func() { rdb.Del(ctx, names.Log()); rdb.Set(ctx, names.Log(), "x", 0) }},
		{"cut off", func() { rdb.XTrimMaxLen(ctx, names.Log(), 1) }},
		{"without some entries", func() {
			for _, entry := range rdb.XRevRangeN(ctx, names.Log(), "+", "-", 50).Val() {
				rdb.XDel(ctx, names.Log(), entry.ID)
			}
		}},
		{"with a hash of another length", func() { rdb.XAdd(ctx, &redis.XAddArgs{Stream: names.Log(), Values: []string{"h", "short"}}) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			rdb.FlushAll(ctx)
			p := redistest.Proxy(t, s.Addr())
			a, b := open(t, s.Client(t), quick), open(t, p.Client(t), quick)
			rebuild(t, a, 0, 1000)
			answers(t, b)
			p.Blackhole(true)
			add(t, a, 1000, 1100)
			c.cut()
			add(t, a, 1100, 1200)
			p.Blackhole(false)
			for end := time.Now().Add(time.Second); time.Now().Before(end); {
				if missing(a, 0, 1200) > 0 {
					t.Fatal("denied where it was added")
				}
				if b.Stats().Loads > 1 && missing(b, 0, 1200) > 0 {
					t.Fatal("denied elsewhere")
				}
			}
			answers(t, a)
			answers(t, b)
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
	if a.Stats().Abstaining || b.Stats().Abstaining {
		t.Error("abstains")
	}
	if n := passing(b, 1e6, 1e6+10_000); n > 0.02 {
		t.Errorf("%.3f pass", n)
	}
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

// With Confirm, what was added before the question is found, however late the news.
func TestAConfirmedNoKnowsEveryAddBeforeTheQuestion(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	slow := func(o *bloom.Options) { o.MaxLag = 10 * time.Second }
	a, sure, unsure := open(t, s.Client(t)), open(t, p.Client(t), slow, func(o *bloom.Options) { o.Confirm = true }), open(t, p.Client(t), slow)
	rebuild(t, a, 0, 1000)
	answers(t, sure)
	answers(t, unsure)
	p.DropMessages(true)
	denied := 0
	for i := range 200 {
		add(t, a, 1000+i, 1001+i)
		if missing(sure, 1000+i, 1001+i) > 0 {
			t.Error("denied")
		}
		denied += missing(unsure, 1000+i, 1001+i)
	}
	if denied == 0 {
		t.Error("without Confirm nothing was denied: the test shows nothing")
	}
	if rate := passing(sure, 1e6, 1e6+2000); rate > 0.05 {
		t.Errorf("%.3f of absent ids pass", rate)
	}
	p.Blackhole(true)
	begun := time.Now()
	if missing(sure, 1e6, 1e6+3) > 0 {
		t.Error("denied without a confirmation")
	}
	if took := time.Since(begun); took > 5*time.Second { // the client itself goes on for longer
		t.Errorf("3 questions took %v", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if !sure.MayContain(ctx, "nobody") {
		t.Error("denied, although nobody waited for the confirmation")
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
	piece, sums := pieceOf(t, rdb)
	before := map[string]string{}
	for _, key := range []string{names.Record(), names.Log(), piece, sums} {
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
	if n := len(rdb.Keys(t.Context(), "*").Val()); n != 6 { // record, log, two generations
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
		{func(o *bloom.Options) { o.Counting = true }, bloom.ErrParameters.Error()},
		{func(o *bloom.Options) { o.Secret = make([]byte, 8) }, "bloom: Secret"},
		{func(o *bloom.Options) { o.Capacity *= 2 }, bloom.ErrParameters.Error()},
		{func(o *bloom.Options) { o.FalsePositiveRate = 0.001 }, bloom.ErrParameters.Error()},
		{func(o *bloom.Options) { o.Secret = make([]byte, 16) }, bloom.ErrParameters.Error()},
	} {
		o := sharedOptions(c.change)
		f, err := bloom.Open(t.Context(), rdb, o)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("got %v, want %s…", err, c.want)
		}
		_ = f.Close()
	}
	for _, none := range []redis.UniversalClient{nil, (*redis.Client)(nil)} {
		if _, err := bloom.Open(t.Context(), none, sharedOptions()); err == nil {
			t.Error("a nil client is accepted")
		}
	}
	if !first.MayContain(t.Context(), idOf(1)) || first.Stats().Abstaining {
		t.Error("the others have spoilt the filter")
	}
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
	if missing(f, 1e6, 1e6+1000) == 0 {
		t.Error("denies nothing")
	}
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

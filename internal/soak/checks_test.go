package soak

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/internal/redistest"
)

// The tests here give each check of the soak what it has to find, and something like it that it must not.

func TestTheSoakFindsAWrongOrLateAnswer(t *testing.T) {
	now := time.Now()
	value := func(version int64) cache.Result[product] {
		return cache.Result[product]{Value: product{7, version}}
	}
	stale, aged := value(3), value(5)
	stale.Stale, aged.Age = true, time.Minute
	since := func(ago time.Duration, cleared bool) confirmation {
		return confirmation{5, now.Add(-ago), cleared}
	}
	for _, test := range []struct {
		name   string
		got    cache.Result[product]
		err    error
		newest confirmation
		rules  cache.Reads
		want   string
	}{
		{"the newest version", value(5), nil, since(time.Minute, false), cache.Reads{}, ""},
		{"a newer version", value(6), nil, since(time.Minute, false), cache.Reads{}, ""},
		{"another key", cache.Result[product]{Value: product{8, 5}}, nil, since(time.Minute, false), cache.Reads{}, "wrong"},
		{"no such key", value(0), cache.ErrNotFound, since(time.Minute, false), cache.Reads{}, "wrong"},
		{"an error", value(0), errSource, since(time.Minute, false), cache.Reads{}, "error"},
		{"not cached", value(0), cache.ErrNotCached, since(time.Minute, false), cache.Reads{NoLoad: true}, "uncached"},
		{"not cached without the rule", value(0), cache.ErrNotCached, since(time.Minute, false), cache.Reads{}, "error"},
		{"marked", stale, nil, since(time.Minute, false), cache.Reads{}, "marked"},
		{"marked against the rule", stale, nil, since(time.Minute, false), cache.Reads{NoStale: true}, "wrong"},
		{"over the age of the rule", aged, nil, since(time.Minute, false), cache.Reads{MaxAge: time.Second}, "wrong"},
		{"old at once", value(4), nil, since(20*time.Millisecond, false), cache.Reads{}, ""},
		{"old within the bound", value(4), nil, since(bound-time.Second, false), cache.Reads{}, "late"},
		{"old beyond the bound", value(4), nil, since(bound+time.Second, false), cache.Reads{}, "too late"},
		{"old from Redis", value(4), nil, since(20*time.Millisecond, false), cache.Reads{SkipLocal: true}, "too late"},
		{"old from Redis after a Clear", value(4), nil, since(time.Second, true), cache.Reads{SkipLocal: true}, "late"},
	} {
		var r report
		r.answer(7, test.got, test.err, test.newest, now, test.rules)
		var got []string
		for _, counter := range []struct {
			name string
			n    int64
		}{{"wrong", r.Wrong}, {"error", r.Errors}, {"uncached", r.Uncached}, {"marked", r.Marked}, {"late", r.Late}, {"too late", r.TooLate}} {
			if counter.n > 0 {
				got = append(got, counter.name)
			}
		}
		if strings.Join(got, ", ") != test.want {
			t.Errorf("%s: counted as %q, want %q", test.name, got, test.want)
		}
	}
}

func TestTheSoakFindsAnOldValueThatAConfirmationForbids(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		name    string
		cached  int64
		tier    cache.Tier
		ago     time.Duration // of the confirmation of version 5; the value has differed for 2 s
		cleared bool
		want    bool
	}{
		{"the confirmed version", 5, cache.TierRedis, time.Minute, false, false},
		{"older, confirmed before it differed", 4, cache.TierRedis, 3 * time.Second, false, true},
		{"older, confirmed since", 4, cache.TierRedis, time.Second, false, false},
		{"older, cleared within the bound", 4, cache.TierRedis, 3 * time.Second, true, false},
		{"older, cleared beyond the bound", 4, cache.TierRedis, bound + 2*time.Second, true, true},
		{"older in memory, within the bound", 4, cache.TierLocal, 3 * time.Second, false, false},
		{"older in memory, beyond the bound", 4, cache.TierLocal, bound + 2*time.Second, false, true},
	} {
		v := audit.StaleValue[int64, product]{Cached: product{7, test.cached}, Tier: test.tier, Since: now.Add(-2 * time.Second)}
		if got := breaks(v, confirmation{5, now.Add(-test.ago), test.cleared}, now); got != test.want {
			t.Errorf("%s: forbidden %v, want %v", test.name, got, test.want)
		}
	}
	var r report
	for range mostFound + 1 {
		r.found(oldValue{After: time.Second, Broken: true})
	}
	r.found(oldValue{After: time.Minute})
	if r.Broken != mostFound+1 || r.Untold != 1 || len(r.Found) != mostFound+1 {
		t.Errorf("%d broken, %d not told, %d told", r.Broken, r.Untold, len(r.Found))
	}
}

// Each case is an old value that was found after, of a row whose version 2 it lacks.
func TestTheSoakFindsAConfirmedChangeThatAValueLacks(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	written := change{version: 2, kind: "Invalidate", by: "1.0", at: ago(70 * time.Second), ended: ago(69 * time.Second), confirmed: true}
	with := func(edit func(*change)) change { c := written; edit(&c); return c }
	failed := with(func(c *change) { c.confirmed, c.err = false, cache.ErrNotInvalidated.Error() })
	open := with(func(c *change) { c.confirmed, c.ended = false, time.Time{} })
	for _, test := range []struct {
		name   string
		change change
		after  time.Duration
		want   string // the class; "" if it is not decided
		fails  bool
		tells  string
	}{
		{"confirmed, after 1 s", written, time.Second, "confirmed", false, "confirmed, Invalidate in process 1.0"},
		{"confirmed, after 10 s", written, 10 * time.Second, "confirmed", false, "returned nil after 1s"},
		{"confirmed, after 60 s", written, time.Minute, "confirmed", true, "faults then: FLUSHALL for 5s"},
		{"not confirmed, after 60 s", failed, time.Minute, "unconfirmed", false, "not invalidated everywhere yet"},
		{"confirmed by the feed", with(func(c *change) { *c, c.fed = failed, ago(60*time.Second) }), time.Minute, "confirmed", true, "confirmed by the feed after 10s"},
		{"confirmed by the feed just now", with(func(c *change) { *c, c.fed = failed, ago(time.Second) }), time.Minute, "confirmed", false, ""},
		{"by a killed process", with(func(c *change) { *c, c.by = open, "2.0" }), time.Minute, "unconfirmed", false, "whose process was killed"},
		{"by a write that never returned", open, time.Minute, "unconfirmed", false, "whose end is not known"},
		{"by a write that still runs", with(func(c *change) { *c, c.at = open, ago(3*time.Second) }), 2 * time.Second, "", false, ""},
		{"without a record", change{version: 2}, time.Minute, "confirmed", true, "nobody has recorded it"},
	} {
		j := judge{lacked: func(id, after, upTo int64) ([]change, error) {
			if id != 7 || after != 1 || upTo != 3 {
				t.Errorf("asked for %d, %d to %d", id, after, upTo)
			}
			return []change{test.change, {version: 3, at: now, ended: now, confirmed: true}}, nil // the later one it need not have
		}}
		j.faults.begin("FLUSHALL", "", ago(75*time.Second), true)
		j.faults.heal(ago(65 * time.Second))
		j.faults.kill("2.0", ago(69*time.Second))
		f := found{oldValue{Key: 7, Cached: 1, Source: 3, Tier: "redis", Since: ago(test.after), After: test.after, Found: now}, "0.0"}
		important, others, err := j.judge([]found{f}, now)
		if err != nil {
			t.Fatal(err)
		}
		texts := slices.Concat(important, others)
		if test.want == "" {
			if len(j.undecided) != 1 || len(texts) > 0 {
				t.Errorf("%s: %q is decided", test.name, texts)
			}
			if _, others, _ = j.judge(nil, now.Add(undecidedFor)); len(j.undecided) > 0 || len(others) != 1 {
				t.Errorf("%s: %d are not decided after %v", test.name, len(j.undecided), undecidedFor)
			}
			continue
		}
		if len(texts) != 1 || !strings.Contains(texts[0], test.tells) || !strings.Contains(texts[0], "key 7") || strings.Contains(texts[0], "lacks version 3") {
			t.Errorf("%s: told %q, want %q", test.name, texts, test.tells)
		}
		class := slices.Index(classes[:], test.want)
		if j.looks[class][f.age()] != 1 || len(j.old[class][f.age()]) != 1 || j.looks[1-class] != [len(ages)]int{} {
			t.Errorf("%s: counted %v, %v", test.name, j.looks, j.old)
		}
		failures := new(failures)
		sum{forbidden: j.failures}.check(failures)
		if (failures.n > 0) != test.fails {
			t.Errorf("%s: the run fails: %v, want %v", test.name, failures.n > 0, test.fails)
		}
	}
}

func TestTheSoakTellsOfAReadThatIsTooLate(t *testing.T) {
	now := time.Now()
	var r report
	r.answer(7, cache.Result[product]{Value: product{7, 1}, Tier: cache.TierLocal}, nil, confirmation{2, now.Add(-time.Minute), false}, now, cache.Reads{})
	j := judge{lacked: func(int64, int64, int64) ([]change, error) {
		at := now.Add(-61 * time.Second)
		return []change{{version: 2, kind: "ClearTags", by: "1.0", at: at, ended: now.Add(-time.Minute), confirmed: true}}, nil
	}}
	if len(r.Found) != 1 {
		t.Fatalf("%d old values", len(r.Found))
	}
	told, _, err := j.judge([]found{{r.Found[0], "0.0"}}, now)
	if err != nil || len(told) != 1 || !strings.Contains(told[0], "process 0.0 has read an old value of key 7 in local") || !strings.Contains(told[0], "ClearTags in process 1.0") {
		t.Errorf("told %q, %v", told, err)
	}
	if len(j.failures) > 0 || j.looks != [2][len(ages)]int{} {
		t.Errorf("a read is counted as a look: %v, %v", j.looks, j.failures)
	}
}

func TestTheSummaryCountsAChangeOnce(t *testing.T) {
	var j judge
	lacks := []change{{version: 2, confirmed: true, at: time.Now()}}
	for range 3 { // processes
		j.count(found{oldValue{Key: 7, After: 2 * time.Second}, ""}, lacks)
	}
	if got, want := j.summary(210, 200, 9), "200 confirmed changes, 100.0000 % right after 1 s (0 old, in 0 looks), 99.5000 % right after 2 s (1 old, in 3 looks)"; !strings.HasPrefix(got, want) ||
		!strings.Contains(got, "10 unconfirmed changes (1 of them by a killed process or still open)") {
		t.Errorf("got %s", got)
	}
}

func TestTheSoakFailsForEachThingThatMustNotBe(t *testing.T) {
	good := sum{report: report{Reads: 1, Late: 1, Errors: 1, Marked: 1, Unconfirmed: 1}}
	for name, bad := range map[string]sum{
		"broken":            {report: report{Broken: 1}},
		"too late":          {report: report{TooLate: 1}},
		"wrong":             {report: report{Wrong: 1}},
		"stuck":             {report: report{Stuck: 1}},
		"keys without end":  {immortal: 1},
		"lacks a confirmed": {forbidden: []string{"x"}},
	} {
		failures := new(failures)
		if good.check(failures); failures.n > 0 {
			t.Error("a good run fails")
		}
		if bad.check(failures); failures.n != 1 {
			t.Errorf("%s: %d failures", name, failures.n)
		}
	}
	for name, grow := range map[string]func(s *sum, n int){
		"nothing":     func(*sum, int) {},
		"goroutines":  func(s *sum, n int) { s.Goroutines = 10 * n },
		"heap":        func(s *sum, n int) { s.Heap = uint64(n) << 20 },
		"connections": func(s *sum, n int) { s.clients = int64(10 * n) },
	} {
		var history []sum
		for n := range 40 {
			var s sum
			grow(&s, n)
			history = append(history, s)
		}
		failures := new(failures)
		if steady(failures, history); (failures.n > 0) != (name != "nothing") {
			t.Errorf("%s: %d failures", name, failures.n)
		}
	}
}

func TestTheSoakFindsAFaultThatNeverRan(t *testing.T) {
	var l faultLog
	var left deck
	for i := range 3 * len(faults) {
		name := left.draw().name
		if i == 0 && name != killed {
			t.Errorf("the first fault is %q", name)
		}
		l.begin(name, "", time.Now(), name != "FLUSHALL")
		l.heal(time.Now())
	}
	text, never := l.ran(enough)
	if !slices.Equal(never, []string{"FLUSHALL"}) || strings.Count(text, "   3 × ") != len(faults)-1 {
		t.Errorf("never ran: %q\n%s", never, text)
	}
	if _, never := l.ran(enough - time.Second); len(never) > 0 {
		t.Errorf("a short run misses %q", never)
	}
}

func TestTheSoakFindsACallThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s service
		hanging := func() (n int64) { s.note(func(r *report) { n = r.Stuck }); return n }
		s.watched(func() { time.Sleep(patience + stuck - time.Millisecond) })
		time.Sleep(time.Minute)
		if hanging() != 0 {
			t.Error("a call in time is counted")
		}
		s.watched(func() { time.Sleep(patience + stuck + time.Millisecond) })
		if n := hanging(); n != 1 {
			t.Errorf("%d calls hang", n)
		}
	})
}

func TestTheSoakFindsAGetWithoutAnEnd(t *testing.T) {
	if err := conserved(cache.Stats{Gets: 9, Local: 1, Redis: 1, Null: 1, Filter: 1, Loaded: 1, Joined: 1, Stale: 1, NotCached: 1, Errors: 1}); err != nil {
		t.Error(err)
	}
	for _, bad := range []cache.Stats{{Gets: 1}, {Local: 1}} {
		if conserved(bad) == nil {
			t.Errorf("%+v is not found", bad)
		}
	}
}

func TestTheSoakFindsAKeyThatLivesForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := redistest.Mini(t).Client(t)
		t.Cleanup(synctest.Wait)
		redistest.Must(rdb.Set(t.Context(), "mortal", 1, time.Minute).Result())
		for want := range int64(2) {
			if n, err := immortals.Eval(t.Context(), rdb, nil).Int64(); n != want || err != nil {
				t.Errorf("%d keys live for ever, %v, want %d", n, err, want)
			}
			redistest.Must(rdb.Set(t.Context(), "immortal", 1, 0).Result())
		}
	})
}

// A service that does not invalidate one of its changes, and says it has, is caught by its Ledger after each of
// the four times, in Redis and in its memory; one that does is not.
func TestTheSoakCatchesAWriterThatForgets(t *testing.T) {
	for _, forgets := range []bool{true, false} {
		t.Run(fmt.Sprintf("forgets %v", forgets), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const id = 2 // lives for long
				many := func(o *redis.Options) { o.PoolSize = 1000 }
				db := redistest.Mini(t).Client(t, many)
				s := redistest.Must(newService("0.0", redistest.Mini(t).Client(t, many), db))
				t.Cleanup(synctest.Wait)
				defer s.cache.Close()
				redistest.Must(db.Set(t.Context(), row(id), 1, 0).Result())
				ledger := redistest.Must(s.ledger())
				defer ledger.Close()
				time.Sleep(5 * time.Second) // until its feed is read, and messages arrive
				read := func() {
					_, err := s.cache.Get(t.Context(), id)
					for errors.Is(err, errSource) { // one load in a hundred fails, and its error is held for a while
						time.Sleep(time.Second)
						_, err = s.cache.Get(t.Context(), id)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				read()
				version := redistest.Must(commitTold.Run(t.Context(), db, []string{row(id)}, id, "Invalidate", s.name).Int64())
				if !forgets {
					if err := s.cache.Invalidate(t.Context(), id); err != nil {
						t.Fatal(err)
					}
				}
				s.settle(id, version, nil, false)
				for range 70 {
					time.Sleep(time.Second)
					read()
				}
				j := judge{lacked: func(id, after, upTo int64) ([]change, error) { return readChanges(t.Context(), db, id, after, upTo) }}
				r := s.report()
				var finds []found
				for _, old := range r.Found {
					finds = append(finds, found{old, s.name})
				}
				if _, _, err := j.judge(finds, time.Now()); err != nil {
					t.Fatal(err)
				}
				want := [len(ages)]int{}
				if forgets {
					want = [len(ages)]int{2, 2, 2, 2}
				}
				if j.looks[confirmed] != want || j.looks[unconfirmed] != [len(ages)]int{} || len(j.failures) != want[3] {
					t.Errorf("looks that have found an old value: %v; failures %q; want %v", j.looks, j.failures, want)
				}
				if (r.Broken > 0) != forgets {
					t.Errorf("%d break what is confirmed", r.Broken)
				}
				if looked := r.Stats.Ledger; looked.Looked60s != 2 || looked.Failed > 0 {
					t.Errorf("the Ledger has counted %+v", looked)
				}
			})
		})
	}
}

// failures counts the errors that would fail a test.
type failures struct {
	testing.TB
	n int
}

func (*failures) Helper()                 {}
func (*failures) Logf(string, ...any)     {}
func (f *failures) Errorf(string, ...any) { f.n++ }

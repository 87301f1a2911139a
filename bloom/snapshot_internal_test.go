package bloom

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

func some(from, to int) []string {
	ids := make([]string, 0, to-from)
	for i := from; i < to; i++ {
		ids = append(ids, strconv.Itoa(i))
	}
	return ids
}

func yielding(ids []string) func(func(string, error) bool) {
	return func(yield func(string, error) bool) {
		for _, id := range ids {
			if !yield(id, nil) {
				return
			}
		}
	}
}

func denied(f *Filter, ids []string) (n int) {
	for _, may := range f.MayContainMany(context.Background(), ids) {
		if !may {
			n++
		}
	}
	return n
}

// state is what the record says.
func (s *shared) state(t *testing.T) (rec *record, snap snapshot) {
	t.Helper()
	rec, err := s.currentRecord(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	part, err := s.store.tail(t.Context(), rec, s.position())
	if err != nil {
		t.Fatal(err)
	}
	return rec, part.snapshot
}

func (s *shared) position() entryID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// A log of more entries than a snapshot may have after it is written into the next one, by
// one process. Others need not load that, and a new one finds all ids in it and in the log.
func TestALongLogIsWrittenIntoASnapshot(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	a, s := opened(t, srv)
	b, _ := opened(t, srv)
	if err := a.Rebuild(t.Context(), yielding(some(0, 100))); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 30*time.Second, "the other answers", func() bool { return !b.Stats().Abstaining })
	_, before := s.state(t)
	ids := some(100, 500)
	for range s.ownShape.compactAfter()/uint64(len(ids)) + 1 { // again and again, or the filter were too full
		if err := a.Add(t.Context(), ids...); err != nil {
			t.Fatal(err)
		}
	}
	var after snapshot
	redistest.Eventually(t, 30*time.Second, "the log is written into a snapshot", func() bool {
		_, after = s.state(t)
		return after.pieces != before.pieces
	})
	// An Add that is repeated, since its reply was late, makes the log longer than the ids: what
	// comes after the snapshot may be any number.
	if n := after.at.number - before.at.number; n <= s.ownShape.compactAfter() {
		t.Errorf("a log of %d entries is written into a snapshot already", n)
	}
	if after.shape != before.shape {
		t.Error("it has another shape")
	}
	if n := len(srv.Client(t).Keys(t.Context(), "*:s:*").Val()); n != 1 {
		t.Errorf("%d snapshots are left", n)
	}
	c, _ := opened(t, srv)
	redistest.Eventually(t, 30*time.Second, "a new process answers", func() bool { return !c.Stats().Abstaining })
	for _, f := range []*Filter{a, b, c} {
		if n := denied(f, some(0, 500)); n > 0 || f.Stats().Loads != 1 {
			t.Errorf("%d ids denied, %+v", n, f.Stats())
		}
	}
}

// A compaction that is stopped between its last piece and its switch, while the others go on.
func TestASnapshotThatComesLateIsNotPutInUse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		meanwhile func(t *testing.T, f *Filter, s *shared, l *lease)
		want      error
	}{
		{"nothing happens", func(*testing.T, *Filter, *shared, *lease) {}, nil},
		// Without the look at the lease two processes could undo what the other one does.
		{"its lease is over", func(t *testing.T, _ *Filter, s *shared, l *lease) {
			s.store.eval(t.Context(), releaseScript, []string{l.name}, l.token)
		}, errLeaseLost},
		// Without the look at the shape the ids that a Rebuild has left out come back, with
		// those that it alone had seen denied.
		{"a Rebuild ends", func(t *testing.T, f *Filter, _ *shared, _ *lease) {
			if err := f.Rebuild(t.Context(), yielding(some(0, 50))); err != nil {
				t.Error(err)
			}
		}, errLeaseLost},
		// Without the look at the entry other processes take a snapshot for newer than it is.
		{"Redis loses the log", func(t *testing.T, _ *Filter, s *shared, _ *lease) {
			rdb := s.rdb
			entries := rdb.XRevRangeN(t.Context(), s.store.names.Log(), "+", "-", 1).Val()
			rdb.XDel(t.Context(), s.store.names.Log(), entries[0].ID)
		}, errGap},
		// Otherwise its pieces would stay for a week.
		{"another one has written a snapshot", func(t *testing.T, _ *Filter, s *shared, _ *lease) {
			rec, _ := s.state(t)
			if err := s.compactWith(t, rec, s.store.names.Rebuild()); err != nil {
				t.Error(err)
			}
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, s := opened(t, redistest.Start(t))
			if err := f.Rebuild(t.Context(), yielding(some(0, 100))); err != nil {
				t.Fatal(err)
			}
			if err := f.Add(t.Context(), some(100, 110)...); err != nil {
				t.Fatal(err)
			}
			rec, old := s.state(t)
			l := s.newLease(rec, s.store.names.Compact())
			if mine, _, _, err := l.acquire(t.Context(), 0); err != nil || !mine {
				t.Fatal(mine, err)
			}
			table := s.answering.Load().table
			next := snapshot{shape: table.shape.encode(), pieces: "late", at: old.last}
			if err := s.store.write(t.Context(), l, next.pieces, 0, table.encodePiece(next.pieces, 0)); err != nil {
				t.Fatal(err)
			}
			c.meanwhile(t, f, s, l)
			inUse, err := s.store.makeCurrent(t.Context(), rec, l, next, old.pieces, false)
			if err == nil && inUse != old.pieces {
				inUse, err = s.store.makeCurrent(t.Context(), rec, l, next, inUse, false)
			}
			if !errors.Is(err, c.want) {
				t.Fatalf("got %q, %v, want %v", inUse, err, c.want)
			}
			if keys := s.rdb.Keys(t.Context(), "*:s:*").Val(); err == nil && !slices.Equal(keys, []string{s.store.names.Pieces("late")}) {
				t.Errorf("in Redis are %q", keys)
			}
		})
	}
}

// compactWith is compact under a lease of another name.
func (s *shared) compactWith(t *testing.T, rec *record, lease string) error {
	l := s.newLease(rec, lease)
	defer l.release()
	if mine, _, _, err := l.acquire(t.Context(), 0); err != nil || !mine {
		return errors.Join(err, errLeaseLost)
	}
	_, err := s.save(t.Context(), rec, s.answering.Load().table, s.position(), l, false)
	return err
}

// What is written of a snapshot without the lease, nobody reads.
func TestPiecesAreWrittenUnderTheLease(t *testing.T) {
	t.Parallel()
	_, s := opened(t, redistest.Start(t))
	rec, _ := s.state(t)
	l := s.newLease(rec, s.store.names.Compact())
	if err := s.store.write(t.Context(), l, "x", 0, []byte("bytes")); !errors.Is(err, errLeaseLost) {
		t.Errorf("got %v", err)
	}
	if n := len(s.rdb.Keys(t.Context(), "*:s:*").Val()); n != 0 {
		t.Errorf("%d snapshots", n)
	}
}

// The log keeps what follows the snapshot, what is younger than the retention, and the newest
// entry from before both: a process that has read everything knows that one.
func TestTheLogKeepsWhatSomebodyMayNeed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ at, young, want int }{
		{at: 90, young: 50, want: 51},
		{at: 20, young: 50, want: 82},
		{at: 100, young: 0, want: 2},
		{at: 100, young: 100, want: 100},
	} {
		f, s := opened(t, redistest.Start(t))
		if err := f.Rebuild(t.Context(), yielding(some(0, 10))); err != nil {
			t.Fatal(err)
		}
		_ = f.Close() // nobody else reads the log, which does not go on from where it was
		rdb, log := s.rdb, s.store.names.Log()
		rec := &record{header: rdb.HGet(t.Context(), s.store.names.Record(), "header").Val()}
		old, now := time.Now().Add(-time.Hour).UnixMilli(), time.Now().UnixMilli()-1000
		rdb.Del(t.Context(), log)
		id := func(n int) entryID {
			ms := old
			if n > 100-c.young {
				ms = now
			}
			return entryID{ms: uint64(ms) + uint64(n), number: uint64(n)}
		}
		for n := 1; n <= 100; n++ {
			rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: log, ID: id(n).String(), Values: []string{"h", "0123456789abcdef"}})
		}
		rdb.HSet(t.Context(), s.store.names.Record(), "last", id(100).String())
		l := s.newLease(rec, s.store.names.Compact())
		if mine, _, _, err := l.acquire(t.Context(), 0); err != nil || !mine {
			t.Fatal(mine, err)
		}
		pieces := rdb.HGet(t.Context(), s.store.names.Record(), "pieces").Val()
		next := snapshot{shape: rdb.HGet(t.Context(), s.store.names.Record(), "shape").Val(), pieces: "next", at: id(c.at)}
		if _, err := s.store.makeCurrent(t.Context(), rec, l, next, pieces, false); err != nil {
			t.Fatal(err)
		}
		if n := rdb.XLen(t.Context(), log).Val(); n != int64(c.want) {
			t.Errorf("at %d, %d young: %d entries are left, want %d", c.at, c.young, n, c.want)
		}
	}
}

// The clock of the server was a day ahead, and entries have that time until the day is over. The
// log is shortened all the same, with a snapshot and without.
func TestALogFromTheFutureIsShortened(t *testing.T) {
	t.Parallel()
	f, s := unstarted(t, redistest.Start(t))
	rdb, log := s.rdb, s.store.names.Log()
	if err := f.Add(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	future := func(entries int) {
		t.Helper()
		last := entryID{ms: uint64(time.Now().Add(24 * time.Hour).UnixMilli())}
		rdb.Del(t.Context(), log)
		for ; entries > 0; entries -= 20_000 {
			add := "for i = 1, 20000 do redis.call('XADD', KEYS[1], ARGV[1] .. '-' .. (ARGV[2] + i), 'h', '0123456789abcdef') end"
			if err := rdb.Eval(t.Context(), add, []string{log}, last.ms, last.number).Err(); !errors.Is(err, redis.Nil) {
				t.Fatal(err)
			}
			last.number += 20_000
		}
		rdb.HSet(t.Context(), s.store.names.Record(), "last", last.String())
		s.mu.Lock()
		s.at = last
		s.mu.Unlock()
	}
	future(140_000)
	rec, _ := s.state(t)
	if _, err := s.store.add(t.Context(), rec, make([]hash, 1), 1e9); err != nil {
		t.Fatal(err)
	}
	if n := rdb.XLen(t.Context(), log).Val(); n != 1<<17 {
		t.Errorf("without a snapshot %d entries are left", n)
	}
	if err := f.Rebuild(t.Context(), yielding(some(0, 10))); err != nil {
		t.Fatal(err)
	}
	future(20_000)
	if err := s.compactWith(t, rec, s.store.names.Compact()); err != nil {
		t.Fatal(err)
	}
	if n := rdb.XLen(t.Context(), log).Val(); n != 1 {
		t.Errorf("after a compaction %d entries are left", n)
	}
}

// Nobody compacts: the filter abstains in time, and the log grows no more.
func TestALogThatNobodyCompactsIsGivenUp(t *testing.T) {
	t.Parallel()
	srv, st, rec, _ := testStore(t)
	rdb := srv.Client(t)
	record := st.names.Record()
	rdb.HSet(t.Context(), record, "shape", newShape(10, 0.01, 1).encode())
	for i := range 11 {
		if _, err := st.add(t.Context(), rec, make([]hash, 10), 100); err != nil {
			t.Fatal(err)
		}
		if shape := rdb.HGet(t.Context(), record, "shape").Val(); (shape == "") != (i == 10) {
			t.Errorf("after %d adds of 10 its shape is %q", i+1, shape)
		}
	}
}

// This process has forgotten the record during its Rebuild, since a read found a gap. The result
// is in use all the same.
func TestARebuildWhoseProcessForgetsTheRecordSucceeds(t *testing.T) {
	t.Parallel()
	f, s := opened(t, redistest.Start(t))
	err := f.Rebuild(t.Context(), func(yield func(string, error) bool) {
		s.forget(s.knownRecord())
		yielding(some(0, 100))(yield)
	})
	if err != nil || !f.Stats().Complete || denied(f, some(0, 100)) > 0 {
		t.Errorf("%v, %+v", err, f.Stats())
	}
}

// A snapshot could not be loaded again and again. The next one is loaded at once.
func TestANewSnapshotIsLoadedAtOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	other, _ := opened(t, srv)
	_, s := unstarted(t, srv)
	u := newUpdater(s)
	begins := func() bool {
		t.Helper()
		if err := u.step(t.Context()); err != nil {
			t.Fatal(err)
		}
		return u.job != nil
	}
	begins()
	u.retryAt = time.Now().Add(time.Hour)
	if begins() {
		t.Error("it does not wait")
	}
	if err := other.Rebuild(t.Context(), yielding(some(0, 100))); err != nil {
		t.Fatal(err)
	}
	if !begins() {
		t.Error("it does not load the new snapshot")
	}
	s.running.Wait()
}

// The updater sees the result of its process's own Rebuild before that lets its table answer.
// To load another copy would take the memory of a third table.
func TestTheResultOfAnOwnRebuildIsNotLoaded(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	other, _ := opened(t, srv)
	if err := other.Rebuild(t.Context(), yielding(some(0, 100))); err != nil {
		t.Fatal(err)
	}
	_, s := unstarted(t, srv)
	u, table := newUpdater(s), newTable(other.impl.(*shared).answering.Load().table.shape, key{}, 1, false)
	s.feed(table)
	if err := u.step(t.Context()); err != nil || u.job != nil {
		t.Errorf("%v, a load has begun: %v", err, u.job != nil)
	}
	s.starve(table)
	if err := u.step(t.Context()); err != nil || u.job == nil {
		t.Errorf("%v, a load has begun: %v", err, u.job != nil)
	}
	s.running.Wait()
}

// after runs once, when the reply to a script has come and nobody has looked at it.
type after struct {
	redistest.EachCommand
	script *redisconn.Script
	ran    atomic.Bool
	fn     func()
}

func (h *after) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); err == nil && len(args) > 1 && args[1] == h.script.Hash() && !h.ran.Swap(true) {
			h.fn()
		}
		return err
	}
}

// The updater has read that there is no snapshot. Before it looks at the reply, a Rebuild of its
// process puts one in use and lets its table answer, which knows more than that reply.
func TestAnOlderReadDoesNotEndTheResultOfARebuild(t *testing.T) {
	t.Parallel()
	f, s := unstarted(t, redistest.Start(t))
	s.o.MaxTransaction = -1
	rec, _ := s.state(t)
	s.rdb.AddHook(&after{EachCommand: func(redis.Cmder) {}, script: tailScript, fn: func() {
		if err := f.Rebuild(t.Context(), yielding(some(0, 100))); err != nil {
			t.Error(err)
		}
	}})
	if _, _, err := s.update(t.Context(), rec); err != nil || !f.Stats().Complete {
		t.Errorf("%v, %+v", err, f.Stats())
	}
}

// A Rebuild decides how large the filter is, in all processes. Here the large one is opened
// while the small one is too full to answer.
func TestAFilterIsResizedByARebuild(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	open := func(capacity uint64) *Filter {
		f, err := Open(t.Context(), srv.Client(t), Options{Name: "f", Capacity: capacity, MaxTransaction: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	small, ids := open(100), some(0, 3000)
	if err := small.Rebuild(t.Context(), yielding(ids)); err != nil || !small.Stats().Saturated {
		t.Fatal(err, small.Stats())
	}
	large := open(10_000)
	redistest.Eventually(t, 30*time.Second, "the large one has the small table", func() bool { return large.Stats().Saturated && large.Stats().Capacity == 100 })
	goOn, half, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- large.Rebuild(t.Context(), func(yield func(string, error) bool) {
			yielding(ids[:1500])(yield)
			close(half)
			<-goOn
			yielding(ids[1500:])(yield)
		})
	}()
	<-half
	added := some(5000, 5100)
	if err := errors.Join(small.Add(t.Context(), added[:50]...), large.Add(t.Context(), added[50:]...)); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for _, f := range []*Filter{small, large} {
		redistest.Eventually(t, 30*time.Second, "it is large", func() bool { return !f.Stats().Abstaining && f.Stats().Capacity == 10_000 })
		if n := denied(f, ids) + denied(f, added); n > 0 {
			t.Errorf("%d ids denied", n)
		}
		redistest.Eventually(t, 30*time.Second, "it denies absent ids", func() bool { return denied(f, some(100_000, 101_000)) >= 950 })
	}
}

// Redis has lost everything, and the row of an id that was added just before commits behind the
// scan of the first Rebuild. It is not denied, since the Rebuild waits until the
// process that added the id has added it again; and it does not wait for MaxTransaction.
func TestTheFirstRebuildWaitsForWhatIsAddedAgain(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	open := func() *Filter {
		f, err := Open(t.Context(), srv.Client(t), Options{Name: "f", Capacity: 1000, MaxLag: 200 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	a, b := open(), open()
	if err := b.Add(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	srv.Client(t).FlushAll(t.Context())
	begun := time.Now()
	err := a.Rebuild(t.Context(), yielding(some(0, 10)))
	for errors.Is(err, ErrUnavailable) { // it had begun before it noticed
		err = a.Rebuild(t.Context(), yielding(some(0, 10)))
	}
	if took := time.Since(begun); err != nil || took > 30*time.Second {
		t.Fatal(took, err)
	}
	redistest.Eventually(t, 30*time.Second, "it answers", func() bool { return denied(a, some(100, 200)) >= 90 })
	if denied(a, []string{"x"}) > 0 {
		t.Error("x is denied")
	}
}

// lose takes Redis back to what it was before fn.
func lose(t *testing.T, s *shared, fn func()) {
	t.Helper()
	keys := []string{s.store.names.Record(), s.store.names.Log()}
	dumps := []string{s.rdb.Dump(t.Context(), keys[0]).Val(), s.rdb.Dump(t.Context(), keys[1]).Val()}
	fn()
	p := s.rdb.TxPipeline()
	for i, key := range keys {
		p.RestoreReplace(t.Context(), key, time.Hour, dumps[i])
	}
	if _, err := p.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Redis comes back after longer than the retention and has lost the last add. If what this
// process remembers grew old meanwhile, the id would be denied, by this process too.
func TestWhatRedisLostIsAddedAgainHoweverLongItWasAway(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	f, s := unstarted(t, srv)
	s.recent.span, s.o.MaxLag = time.Second, time.Second // in place of a minute
	s.start(s.rdb, newUpdater(s))
	t.Cleanup(func() { _ = f.Close() })
	other, _ := opened(t, srv)
	if err := f.Rebuild(t.Context(), yielding(some(0, 100))); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 30*time.Second, "the other answers", func() bool { return !other.Stats().Abstaining })
	lose(t, s, func() {
		if err := f.Add(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	})
	srv.Stop()
	time.Sleep(2 * time.Second)
	srv.Cont()
	redistest.Eventually(t, 30*time.Second, "it has noticed", func() bool { return f.Stats().Loads > 1 && !f.Stats().Abstaining })
	redistest.Eventually(t, 30*time.Second, "the other knows it", func() bool { return !other.Stats().Abstaining && denied(other, []string{"x"}) == 0 })
	if denied(f, []string{"x"}) > 0 {
		t.Error("the process that added it denies it")
	}
}

// unstarted is a filter whose updater does not run. Its copy answers for a minute.
func unstarted(t *testing.T, srv *redistest.Server) (*Filter, *shared) {
	t.Helper()
	o, err := Options{Name: "f", Capacity: 1000, MaxTransaction: time.Millisecond, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}.withSharedDefaults()
	if err != nil {
		t.Fatal(err)
	}
	s := newShared(srv.Client(t), o)
	s.o.MaxLag = time.Minute
	t.Cleanup(func() { s.end(ErrClosed) })
	return &Filter{s, o.Name, false}, s
}

// Redis has lost an add, and this process has not read the log since. Its Rebuild does not find
// the row either, which is not committed yet.
func TestARebuildKeepsWhatItsProcessHasAddedAndRedisHasLost(t *testing.T) {
	t.Parallel()
	f, s := unstarted(t, redistest.Start(t))
	if err := f.Add(t.Context(), "before"); err != nil {
		t.Fatal(err)
	}
	lose(t, s, func() {
		if err := f.Add(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	})
	if err := f.Rebuild(t.Context(), yielding(some(0, 100))); err != nil || f.Stats().Abstaining || denied(f, []string{"x"}) > 0 {
		t.Errorf("%v, x is denied: %d, %+v", err, denied(f, []string{"x"}), f.Stats())
	}
}

// The clock of the server was ahead when the newest entry was written, so the IDs that
// follow have one time. After a failover that loses an entry, the next one has its ID. Without
// the look at what it holds, those who have read the lost one never read the other.
func TestAnotherEntryOfTheSameIDIsNoticed(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	f, s := opened(t, srv)
	if err := f.Rebuild(t.Context(), yielding(some(0, 100))); err != nil {
		t.Fatal(err)
	}
	ahead := entryID{ms: uint64(time.Now().Add(time.Minute).UnixMilli()), number: s.position().number + 1}
	p := s.rdb.TxPipeline()
	p.XAdd(t.Context(), &redis.XAddArgs{Stream: s.store.names.Log(), ID: ahead.String(), Values: []string{"h", "0123456789abcdef"}})
	p.HSet(t.Context(), s.store.names.Record(), "last", ahead.String())
	if _, err := p.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	lose(t, s, func() {
		if err := f.Add(t.Context(), "lost"); err != nil {
			t.Fatal(err)
		}
		redistest.Eventually(t, 30*time.Second, "it is read", func() bool { return s.position().number == ahead.number+1 })
	})
	other, _ := opened(t, srv)
	if err := other.Add(t.Context(), "z"); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 30*time.Second, "both know both", func() bool {
		return !f.Stats().Abstaining && !other.Stats().Abstaining && denied(f, []string{"z", "lost"})+denied(other, []string{"z", "lost"}) == 0
	})
}

// A process reads the record of a snapshot, and then a failover loses that snapshot and the entries
// before it. Others add, and the last of theirs gets the ID of the entry up to which it goes. A load
// that goes by the ID denies the one before.
func TestASnapshotThatAFailoverLostIsNotLoaded(t *testing.T) {
	t.Parallel()
	f, s := unstarted(t, redistest.Start(t))
	if err := f.Rebuild(t.Context(), yielding(some(0, 100))); err != nil {
		t.Fatal(err)
	}
	rec, _ := s.state(t)
	var lost snapshot
	lose(t, s, func() {
		if err := f.Add(t.Context(), "a", "b"); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.update(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
		if err := s.compactWith(t, rec, s.store.names.Compact()); err != nil {
			t.Fatal(err)
		}
		_, lost = s.state(t)
	})
	p, hashes := s.rdb.TxPipeline(), encodeHashes(rec.key.appendSums(nil, []string{"y", "z"}))
	for i, id := range []entryID{{ms: lost.at.ms, number: lost.at.number - 1}, lost.at} {
		p.XAdd(t.Context(), &redis.XAddArgs{Stream: s.store.names.Log(), ID: id.String(), Values: []any{"h", hashes[i*hashLen : (i+1)*hashLen]}})
	}
	p.HSet(t.Context(), s.store.names.Record(), "last", lost.at.String())
	if _, err := p.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.load(t.Context(), rec, lost); !errors.Is(err, errOvertaken) || denied(f, []string{"y", "z"}) == 0 {
		t.Errorf("%v; of y and z %d are denied", err, denied(f, []string{"y", "z"}))
	}
}

// The newest entry of a log is known by what it holds, to those too who have not read it.
func TestWhatTheNewestEntryHoldsIsKnown(t *testing.T) {
	t.Parallel()
	_, st, rec, begun := testStore(t)
	if begun.hash != "" {
		t.Errorf("the first entry holds %q", begun.hash)
	}
	added := []hash{{1, 2}}
	if _, err := st.add(t.Context(), rec, added, 1e9); err != nil {
		t.Fatal(err)
	}
	if _, last, err := st.ensure(t.Context(), false); err != nil || last.hash != string(encodeHashes(added)) {
		t.Errorf("the newest entry holds %q, %v", last.hash, err)
	}
	r := &sharedRebuild{filter: &shared{store: st, o: Options{Capacity: 10, FalsePositiveRate: 0.1, MaxTransaction: time.Hour}}, record: rec}
	r.filter.ownShape = newShape(10, 0.1, 0)
	if _, err := r.begin(t.Context()); err != nil || r.at.String() != begun.String() || r.at.hash != "" {
		t.Errorf("a Rebuild begins at %+v, %v", r.at, err)
	}
	r.filter.o.MaxTransaction = -1
	if _, err := r.begin(t.Context()); err != nil || r.at.hash != string(encodeHashes(added)) {
		t.Errorf("a Rebuild begins at %+v, %v", r.at, err)
	}
}

// A MaxTransaction of longer than the clock has run is one for ever.
func TestARowMayTakeForEverToCommit(t *testing.T) {
	t.Parallel()
	f, err := Open(t.Context(), redistest.Start(t).Client(t), Options{Name: "f", Capacity: 1000, MaxTransaction: 1<<63 - 1})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Add(t.Context(), "x"); err != nil {
		t.Error(err)
	}
	if err := f.Rebuild(t.Context(), yielding(some(0, 100))); err != nil || denied(f, []string{"x"}) > 0 {
		t.Errorf("%v, x denied %d", err, denied(f, []string{"x"}))
	}
}

package linear

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// tell appends a change to the log, and returns its position.
func (b *board) tell(key int) int64 {
	at := atomic.AddInt64(&b.cells[logBegin], 1)
	if at > logChanges {
		panic("the log is full")
	}
	atomic.StoreInt64(&b.cells[logBegin+1+at], int64(key)+1)
	return at
}

func (b *board) told() int64      { return atomic.LoadInt64(&b.cells[logBegin]) }
func (b *board) confirmed() int64 { return atomic.LoadInt64(&b.cells[logBegin+1]) }

// change returns the key of a change, or that it is not there yet.
func (b *board) change(at int64) (key int, ok bool) {
	n := atomic.LoadInt64(&b.cells[logBegin+1+at])
	return int(n - 1), n > 0
}

// fed is a cache whose writers know nothing of it: they write to the database, whose log
// tells. A write counts as done when the feed has confirmed its position.
type fed struct {
	subject
	db *board
}

func (f fed) write(key int, commit func()) error { commit(); return f.invalidate(key) }
func (f fed) set(key int, _ int64) error         { return f.invalidate(key) }
func (f fed) refresh(key int) error              { return f.invalidate(key) }

func (f fed) invalidate(key int) error {
	at := f.db.tell(key)
	return insist(func() error {
		if f.db.confirmed() < at {
			return errors.New("the feed confirms nothing")
		}
		return nil
	})
}

// logFeed is the feed of a board's log.
type logFeed struct{ db *board }

func (f logFeed) Name() string { return "linear" }

func (f logFeed) Open(_ context.Context, from feed.Position) (feed.Stream, error) {
	if from == (feed.Position{}) {
		return &logStream{f.db, f.db.told()}, nil
	}
	at, err := strconv.ParseInt(from.Text, 10, 64)
	return &logStream{f.db, at}, err
}

type logStream struct {
	db *board
	at int64
}

// Next gives what is there, or after a while a position without changes.
func (s *logStream) Next(ctx context.Context) (b feed.Batch, err error) {
	for end := time.Now().Add(5 * time.Millisecond); ; time.Sleep(100 * time.Microsecond) {
		if ctx.Err() != nil { // asked before s.at moves: nothing is taken by a Next that gives nothing
			return feed.Batch{}, ctx.Err()
		}
		for len(b.Changes) < 100 && s.at < s.db.told() {
			key, ok := s.db.change(s.at + 1)
			if !ok {
				break
			}
			s.at++
			b.Changes = append(b.Changes, feed.Change{
				Table: "row", Kind: feed.Updated, New: feed.Row{"key": int64(key)}, Key: []string{"key"},
			})
		}
		if len(b.Changes) > 0 || time.Now().After(end) {
			b.Position = feed.Position{Text: strconv.FormatInt(s.at, 10), Order: uint64(s.at)}
			return b, nil
		}
	}
}

func (s *logStream) Confirm(_ context.Context, p feed.Position) error {
	at, err := strconv.ParseInt(p.Text, 10, 64)
	for err == nil {
		old := s.db.confirmed()
		if at <= old || atomic.CompareAndSwapInt64(&s.db.cells[logBegin+1], old, at) {
			break
		}
	}
	return err
}

func (s *logStream) Close() error { return nil }

// follower is a process that follows the feed.
func follower(p *redistest.Parent, args []string) error {
	db, err := openBoard(args[1])
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: args[0], ContextTimeoutEnabled: true})
	defer rdb.Close()
	rdb.AddHook(pauses{})
	s, err := newCached(0, 0, rdb, db, nervous)
	if err != nil {
		return err
	}
	defer s.close()
	p.Say("ready")
	return s.(cached).Follow(context.Background(), logFeed{db})
}

// A reader who comes after the feed has confirmed a write never sees what was before it,
// though no writer invalidates anything: while followers are killed and stand still,
// and Redis restarts, which keeps what it has confirmed.
func TestNoReadIsStaleThatTheFeedHasConfirmed(t *testing.T) {
	length := redistest.Pick(9*time.Second, 55*time.Second)
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	path := newBoard(t)
	db, err := openBoard(path)
	if err != nil {
		t.Fatal(err)
	}
	var followers []*redistest.ChildProcess
	start := func() {
		c := redistest.Child(t, "follower", s.Addr(), path)
		c.Expect("ready")
		followers = append(followers, c)
	}
	start()
	start()
	clients := launch(t, "client", s.Addr(), path, length, "feeds", nervous.String())
	stop := make(chan struct{})
	ended := make(chan struct{})
	kills := 0
	go func() {
		defer close(ended)
		for ; ; kills++ {
			select {
			case <-stop:
				return
			case <-time.After(1500 * time.Millisecond):
			}
			switch kills % 3 {
			case 0: // whichever has the lock; the other takes over
				followers[0].Kill()
				followers = followers[1:]
				start()
			case 1:
				s.Restart()
			case 2: // for longer than its lease; then it goes on, and is too late
				followers[0].Stop()
				time.Sleep(redistest.Pick(1*time.Second, 4*time.Second))
				followers[0].Cont()
			}
		}
	}()
	history := clients.history(t)
	close(stop)
	<-ended
	for _, f := range followers {
		f.Kill()
	}
	if bad := stale(history); len(bad) > 0 {
		t.Errorf("%d of %d operations read what was before a confirmed write, as client %d at %d", len(bad), len(history), bad[0].Client, bad[0].Call)
	}
	if n := db.confirmed(); n < 100 || kills < 3 {
		t.Errorf("%d changes are confirmed, with %d faults: this tests nothing", n, kills)
	}
	t.Logf("%d operations, %d changes, %d faults", len(history), db.confirmed(), kills)
}

package bloom

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// A shared is a filter whose log and snapshot are in Redis.
//
//	Redis          record     which snapshot is in use, and the newest entry of the log
//	               snapshot   a table, in pieces that never change
//	               log        the ids that were added, at least those since the snapshot
//	this process   localCopy  a table: the snapshot and the log since; answers MayContain
//	               updater    a goroutine that loads the copy and reads the log into it
//
// An Add appends to the log and does nothing else in Redis (add.go). A Rebuild fills a table
// from the ids that exist and from the log, and writes it as the next snapshot
// (sharedrebuild.go). When the log has grown long, one process writes its copy as the next
// snapshot (snapshot.go).
type shared struct {
	answering atomic.Pointer[localCopy] // nil: the filter abstains
	rdb       redis.UniversalClient
	o         Options
	ownShape  shape  // of the table of a Rebuild in this process, but for the seed
	quoted    string // the name, for logs

	_ [64]byte // keeps what Adds write off the cache line that every MayContain reads

	store       *store
	link        *redisconn.Link
	unsubscribe func()
	life        context.Context // ends with Close
	end         context.CancelCauseFunc
	running     sync.WaitGroup
	closing     sync.Once
	announced   chan struct{} // signals that the log may have new entries

	recent recent[string]            // ids that this process has added lately
	readAt atomic.Pointer[time.Time] // when the log was last read to its end
	counts counts
	loads  atomic.Uint64

	rebuilding atomic.Int64 // Rebuilds that run in this process

	// mu guards the fields below. Nobody holds it during a call to Redis.
	mu       sync.Mutex
	record   *record          // nil: not known
	at       entryID          // the newest entry of the log that this process has read
	own      map[uint64]hash  // adds of this process that Redis has acknowledged after at, by the number of their entry
	newest   uint64           // the greatest number of an entry that was in own
	snapshot snapshot         // in use, as of at
	fed      []*table         // the tables that adds go into: the one that answers and those being made
	changed  chan struct{}    // closed when another copy begins to answer
	lost     bool             // Redis has lost something: the updater has to add the recent ids again
	owed     []string         // ids that the updater has to add
	invalid  map[string]int64 // when each filter of the name was last invalidated, as far as known, by its header
}

// Open returns a Filter that is shared by all processes that Open the same Name in the same
// Redis. The package documentation says what such a filter guarantees.
//
// Open reads the filter's record from Redis, and makes one if there is none. It returns
// ErrParameters if the stored filter has another Secret, and an error that says so if it
// cannot work with a client like rdb, or if Options.Counting is set. Capacity and
// FalsePositiveRate may differ between processes: a Rebuild uses its own process's values.
//
// An untyped nil rdb makes a filter of this process alone, as [New] does, so that one program
// runs with and without Redis; a nil pointer of a client's type is an error. The rules for
// options stay those of a shared filter, Name included, so that a test refuses what production
// refuses; MaxLag and Logger then have no effect. Such a filter does not learn the ids that
// other processes add: see New.
//
// If Redis does not reply, Open succeeds, and the filter abstains and keeps trying; but if ctx
// has ended, Open returns ErrUnavailable. The filter also abstains if the stored filter only
// then turns out to have another Secret. Open does not wait until the copy is loaded.
//
// The Filter runs goroutines until Close.
func Open(ctx context.Context, rdb redis.UniversalClient, o Options) (*Filter, error) {
	o, err := o.withSharedDefaults()
	if err != nil {
		return nil, err
	}
	if rdb == nil {
		return New(o)
	}
	if err := redisconn.CheckClient(rdb, redisconn.Scripts); err != nil {
		return nil, fmt.Errorf("bloom: %w", err)
	}
	redisconn.Advise(rdb, logonce.New(o.Logger, "bloom: "))
	s := newShared(rdb, o)
	u := newUpdater(s)
	switch _, err := s.askForRecord(ctx, o.Complete); {
	case err == nil:
	case errors.Is(err, ErrParameters) || ctx.Err() != nil:
		return nil, unavailable(ctx, "Open", err)
	case redisconn.Refused(err):
		u.report(ctx, err)
	default:
		o.Logger.Warn("bloom: redis does not reply, the filter abstains until it does", "filter", s.quoted, "error", err)
	}
	s.start(rdb, u)
	return &Filter{s, o.Name, false}, nil
}

func newShared(rdb redis.UniversalClient, o Options) *shared {
	s := &shared{
		rdb: rdb, o: o, ownShape: newShape(o.Capacity, o.FalsePositiveRate, 0), quoted: logonce.Shown(o.Name),
		store:     newStore(rdb, o, rand.Text()),
		announced: make(chan struct{}, 1), changed: make(chan struct{}),
		own: map[uint64]hash{}, invalid: map[string]int64{},
		recent: recent[string]{span: o.retention(), room: maxRecent},
	}
	made := time.Now()
	s.noteRead()
	s.recent.clock = func() time.Duration { return s.readAt.Load().Sub(made) }
	s.life, s.end = context.WithCancelCause(context.Background())
	return s
}

func (s *shared) start(rdb redis.UniversalClient, u *updater) {
	s.link = redisconn.OpenLink(rdb)
	s.unsubscribe = s.link.Subscribe(s.store.names.Channel(), redisconn.Subscriber{
		Message: func(from string) {
			if from != s.store.self {
				wait.Wake(s.announced)
			}
		},
		Gap: func() { wait.Wake(s.announced) },
	})
	s.running.Go(func() { u.run(s.life) })
}

func (s *shared) close() {
	s.closing.Do(func() { // a second Close would end another filter's share in the link
		s.end(ErrClosed)
		s.forget(s.knownRecord())
		s.running.Wait()
		s.recent.drop()
		s.mu.Lock()
		s.owed = nil
		s.mu.Unlock()
		s.unsubscribe()
		s.link.Close()
	})
}

func (s *shared) mayContain(id string) bool {
	c := s.answering.Load()
	return c == nil || !c.denies(id)
}

func (s *shared) mayContainMany(ids []string) []bool {
	if c := s.answering.Load(); c != nil {
		return c.mayContainMany(ids)
	}
	return allTrue(len(ids))
}

// currentRecord returns the record of the filter in Redis, which it reads from Redis if it
// is not known.
func (s *shared) currentRecord(ctx context.Context) (*record, error) {
	if rec := s.knownRecord(); rec != nil {
		return rec, nil
	}
	return s.askForRecord(ctx, false)
}

func (s *shared) knownRecord() *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record
}

// askForRecord reads the record from Redis. If there is none, it makes the record of a filter
// that is complete and empty, or of a filter that abstains.
func (s *shared) askForRecord(ctx context.Context, complete bool) (*record, error) {
	rec, last, err := s.store.ensure(ctx, complete)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record == nil {
		s.record, s.at = rec, last
	}
	return s.record, nil
}

// noteRead notes that the log was read to its end.
func (s *shared) noteRead() {
	now := time.Now()
	s.readAt.Store(&now)
}

// forget makes the filter abstain, because nothing known of rec is true any longer. The next
// call, or the updater, reads the record from Redis again, and the updater adds again the ids
// that this process has added lately.
func (s *shared) forget(rec *record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record != rec {
		return
	}
	s.record, s.at, s.own, s.newest, s.snapshot = nil, entryID{}, map[uint64]hash{}, 0, snapshot{}
	s.lost = true
	s.abstain()
}

// abstain drops the copy that answers. The caller holds mu.
func (s *shared) abstain() {
	if c := s.answering.Swap(nil); c != nil {
		s.unfed(c.table)
	}
}

// heard notes when the filter of rec was last invalidated. If that is later than this process knew,
// the copy that answers is from before, even if the log goes on and a snapshot is in use again.
func (s *shared) heard(rec *record, last int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last > s.invalid[rec.header] {
		s.invalid[rec.header] = last
		s.abstain()
	}
}

// invalidate makes every process abstain, this one at once, until a Rebuild that begins later has
// succeeded.
func (s *shared) invalidate(ctx context.Context) error {
	if s.life.Err() != nil {
		return ErrClosed
	}
	err := s.onRecord(ctx, func(rec *record) error {
		last, err := s.store.invalidate(ctx, rec, 0)
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.invalid[rec.header] = max(s.invalid[rec.header], last)
		s.abstain()
		return nil
	})
	if err != nil {
		return unavailable(ctx, "Invalidate", err)
	}
	wait.Wake(s.announced)
	return nil
}

// attempts is how often a call is repeated because the filter has changed meanwhile.
const attempts = 8

// onRecord calls fn with the record of the filter in Redis. If fn returns errLost, Redis has lost
// the filter and fn has done nothing: onRecord calls it again with the next record. It also
// calls fn again after errLate. If all replies are late, Redis has lost the end of the log, so that
// new entries get numbers that the updater has read already: onRecord then forgets the record.
func (s *shared) onRecord(ctx context.Context, fn func(*record) error) (err error) {
	for i := range attempts {
		var rec *record
		if rec, err = s.currentRecord(ctx); err != nil {
			return err
		}
		switch err = fn(rec); {
		case !errors.Is(err, errLost) && !errors.Is(err, errLate):
			return err
		case errors.Is(err, errLost) || i == attempts/2:
			s.forget(rec)
		}
	}
	return err
}

// needsRebuild reports whether only a Rebuild can give this process a copy, as far as it
// knows: the filter was never rebuilt, Redis has lost it, or its snapshot is damaged. The
// caller holds mu.
func (s *shared) needsRebuild() bool {
	read := s.record != nil && s.snapshot.last != (entryID{})
	return s.answering.Load() == nil && read && (s.snapshot.shape == "" || s.snapshot.damaged)
}

func (s *shared) stats() Stats {
	stats := s.counts.stats(s.o)
	stats.Loads = s.loads.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	stats.Rebuilding = s.rebuilding.Load() > 0
	c := s.answering.Load()
	if c == nil {
		stats.NeedsRebuild = s.needsRebuild()
		return stats
	}
	left := c.left()
	stats.Lag = s.o.MaxLag - left
	stats.Complete, stats.Saturated = true, c.table.saturated.Load()
	stats.Abstaining = stats.Saturated || left <= 0
	stats.describe(c.table)
	return stats
}

package bloom

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// A shared is a filter whose table and log are in Redis.
//
//	Redis          record      which generation is in use, and which comes next
//	               generation  its table: pieces (bitmaps), counters if it counts, checksums
//	               log         the newest adds and removals
//	this process   localCopy   the bits of the generation in use; answers MayContain
//	               updater     a goroutine that loads the copy and reads the log into it
//
// An Add changes table and log in one script (add.go), and so does a Remove (remove.go).
// A Rebuild makes another generation and switches to it (sharedrebuild.go).
type shared struct {
	// answering is the copy that MayContain asks. Nil: the filter abstains.
	answering atomic.Pointer[localCopy]
	rdb       redis.UniversalClient
	o         Options
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
	asked       chan struct{} // signals that somebody waits for the next read of the log

	recent recent // hashes that this process has added
	counts counts
	loads  atomic.Uint64

	// mu guards the fields below. Nobody holds it during a call to Redis.
	mu           sync.Mutex
	record       *record       // nil: not known
	generations  generations   // the newest known; Redis may have others by now
	copy         *localCopy    // the same as answering
	candidate    *localCopy    // loaded, and soon to replace copy
	ownEntry     entryID       // the log's newest entry of an Add of this process
	applied      entryID       // the log's newest entry that the copies have
	confirmation *confirmation // for the callers that wait for the next read; nil: none
	changed      chan struct{} // closed when another copy begins to answer
	warned       string        // the generation that was reported as full
	rebuilding   int           // Rebuilds that run in this process
	recentKey    key           // with which the hashes in recent were made
}

// Open makes a Filter that is one filter in all processes that Open the same Name in
// the same Redis. The package documentation says what such a filter promises.
//
// Open asks Redis for the filter's record, and makes one if there is none. It returns
// ErrParameters if the stored filter has another Capacity, FalsePositiveRate, Secret or Counting,
// and an error that says so if it cannot work with a client like rdb.
// If Redis does not answer, Open succeeds: the filter abstains and keeps trying. It also
// abstains if the stored filter turns out only then to have other parameters. Open does
// not wait until the copy is loaded.
//
// The Filter has goroutines of its own until Close.
func Open(ctx context.Context, rdb redis.UniversalClient, o Options) (*Filter, error) {
	o, err := o.withSharedDefaults()
	if err != nil {
		return nil, err
	}
	if err := redisconn.CheckClient(rdb, redisconn.Scripts); err != nil {
		return nil, fmt.Errorf("bloom: %w", err)
	}
	redisconn.Advise(rdb, logonce.New(o.Logger, "bloom: "))
	s := newShared(rdb, o)
	if _, err := s.askForRecord(ctx, o.Complete); err != nil {
		if errors.Is(err, ErrParameters) || ctx.Err() != nil {
			return nil, unavailable(ctx, "Open", err)
		}
		o.Logger.Warn("bloom: redis does not answer, the filter abstains until it does", "filter", s.quoted, "error", err)
	}
	s.start(rdb)
	return &Filter{s, o.Name, o.Counting}, nil
}

func newShared(rdb redis.UniversalClient, o Options) *shared {
	s := &shared{
		rdb: rdb, o: o, quoted: logonce.Shown(o.Name),
		store:     newStore(rdb, o, rand.Text()),
		announced: make(chan struct{}, 1), asked: make(chan struct{}, 1), changed: make(chan struct{}),
		recent: recent{span: max(o.MaxTransaction, time.Minute), room: maxBatch},
	}
	s.life, s.end = context.WithCancelCause(context.Background())
	return s
}

func (s *shared) start(rdb redis.UniversalClient) {
	s.link = redisconn.OpenLink(rdb)
	s.unsubscribe = s.link.Subscribe(s.store.names.Channel(), redisconn.Subscriber{
		Message: func(from string) {
			if from != s.store.self {
				wait.Wake(s.announced)
			}
		},
		Gap: func() { wait.Wake(s.announced) },
	})
	s.running.Go(func() { newUpdater(s).run(s.life) })
}

func (s *shared) close() {
	s.closing.Do(func() { // a second Close would end another filter's share in the link
		s.end(ErrClosed)
		s.forget(s.knownRecord())
		s.running.Wait()
		s.recent.drop()
		s.unsubscribe()
		s.link.Close()
	})
}

func (s *shared) mayContain(ctx context.Context, id string) bool {
	if !s.denies(id) {
		return true
	}
	return s.o.Confirm && !(s.confirm(ctx) && s.denies(id))
}

// denies reports whether id surely is not in the set.
func (s *shared) denies(id string) bool {
	c := s.answering.Load()
	return c != nil && c.denies(id)
}

// currentRecord returns the record of the filter in Redis, and asks Redis for it if
// it is not known.
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

// askForRecord asks Redis for the record, which Redis makes if there is none: of a filter
// that is complete and empty, or of one that abstains.
func (s *shared) askForRecord(ctx context.Context, complete bool) (*record, error) {
	rec, err := s.store.ensure(ctx, complete)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record == nil {
		s.record = rec
	}
	return s.record, nil
}

// forget makes the filter abstain, because nothing known of rec holds any longer. The
// next call and the updater ask Redis what there is.
func (s *shared) forget(rec *record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record != rec {
		return
	}
	s.record, s.generations, s.ownEntry, s.applied = nil, generations{}, entryID{}, entryID{}
	s.copy, s.candidate = nil, nil
	s.answering.Store(nil)
}

// attempts is how often a call is repeated because the filter has changed meanwhile.
const attempts = 8

// onRecord calls fn with the record of the filter in Redis. If Redis has lost that filter,
// fn has done nothing and is called again with the next record.
func (s *shared) onRecord(ctx context.Context, fn func(*record) error) error {
	for range attempts {
		rec, err := s.currentRecord(ctx)
		if err != nil {
			return err
		}
		if err = fn(rec); !errors.Is(err, errLost) {
			return err
		}
		s.forget(rec)
	}
	return errLost
}

var errChanging = errors.New("the generations keep changing")

// onGenerations calls change with the generations that are in use, as far as this process
// knows. If Redis replies that there are others, change has done nothing and is called
// again with those.
func (s *shared) onGenerations(rec *record, change func(generations) (changeReply, error)) (changeReply, error) {
	for range attempts {
		s.mu.Lock()
		guess := s.generations
		s.mu.Unlock()
		reply, err := change(guess)
		if err != nil {
			return reply, err
		}
		s.mu.Lock()
		if s.isCurrent(rec) {
			s.generations = reply.generations
		}
		s.mu.Unlock()
		if !reply.stale {
			return reply, nil
		}
	}
	return changeReply{}, errChanging
}

// isCurrent reports whether rec is the record of the filter in Redis, as far as is known.
// The caller holds mu.
func (s *shared) isCurrent(rec *record) bool { return s.record != nil && *s.record == *rec }

// inChunks calls fn with the hashes of some ids at a time and counts the ids.
func (s *shared) inChunks(ctx context.Context, what string, ids []string, count *atomic.Uint64, fn func(*record, []hash) error) error {
	for chunk := range slices.Chunk(ids, s.o.chunk()) {
		if s.life.Err() != nil {
			return ErrClosed
		}
		err := s.onRecord(ctx, func(rec *record) error {
			return fn(rec, rec.key.appendSums(make([]hash, 0, len(chunk)), chunk))
		})
		if err != nil {
			return unavailable(ctx, what, err)
		}
		count.Add(uint64(len(chunk)))
	}
	return nil
}

// warnFull reports once for each generation that it holds more ids than Capacity. The
// number of ids is an estimate, in small filters off by a percent or two. Without
// some slack half of the filters with exactly Capacity ids would be reported.
func (s *shared) warnFull() {
	s.mu.Lock()
	defer s.mu.Unlock()
	slack := s.o.Capacity/20 + 10
	c := s.copy
	if c == nil || s.warned == c.name || c.generation.ids() <= s.o.Capacity+slack {
		return
	}
	s.warned = c.name
	s.o.Logger.Warn("bloom: filter holds more ids than its Capacity", "filter", s.quoted,
		"capacity", s.o.Capacity, "ids", c.generation.ids(), "false_positive_rate", c.generation.rate())
}

// isEmpty reports whether the filter in Redis is one that nobody has rebuilt yet: it is
// new, or Redis has lost it. The caller holds mu.
func (s *shared) isEmpty() bool {
	return s.record != nil && s.applied != (entryID{}) && s.generations.current == ""
}

func (s *shared) stats() Stats {
	stats := s.counts.stats(s.o)
	stats.Loads = s.loads.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	stats.Rebuilding = s.rebuilding > 0
	c := s.answering.Load()
	if c == nil {
		stats.NeedsRebuild = s.isEmpty()
		return stats
	}
	left := c.left()
	stats.Lag = s.o.MaxLag - left
	stats.Complete, stats.Saturated = true, c.generation.saturated.Load()
	stats.Abstaining = stats.Saturated || left <= 0
	stats.describe(c.generation)
	return stats
}

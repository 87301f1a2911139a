package bloom

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redisconn"
)

// Open makes a Filter that all processes share that open one of the same Name in
// the same Redis. See the package documentation for what it promises.
//
// It asks Redis for the filter's record, and makes it if there is none. A filter
// stored with another Capacity, FalsePositiveRate or Secret is an error
// (ErrParameters). That Redis does not answer is none: the filter abstains and goes
// on trying, and so it does if the stored filter turns out to be another one only
// then. Open does not wait until the filter is loaded.
//
// The Filter has goroutines of its own until Close.
func Open(ctx context.Context, rdb redis.UniversalClient, o Options) (*Filter, error) {
	o, err := o.withSharedDefaults()
	if err != nil {
		return nil, err
	}
	if v := reflect.ValueOf(rdb); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, errors.New("bloom: Open needs a redis client, got nil")
	}
	s := &shared{
		o: o, quoted: strconv.Quote(o.Name[:min(len(o.Name), 64)]),
		kick: make(chan struct{}, 1), asked: make(chan struct{}, 1), changed: make(chan struct{}),
		self: rand.Text(),
	}
	s.authority = newAuthority(rdb, o, s.self)
	s.recent = recent{span: max(o.MaxTransaction, time.Minute), room: maxBatch}
	s.life, s.end = context.WithCancelCause(context.Background())
	if _, err := s.find(ctx, o.Complete); err != nil {
		if errors.Is(err, ErrParameters) || ctx.Err() != nil {
			return nil, unavailable(ctx, "Open", err)
		}
		o.Logger.Warn("bloom: redis does not answer, the filter abstains until it does", "filter", s.quoted, "error", err)
	}
	s.hub = redisconn.OpenLink(rdb)
	s.unsubscribe = s.hub.Subscribe(s.names.Channel(), redisconn.Subscriber{
		Message: func(from string) {
			if from != s.self {
				wake(s.kick)
			}
		},
		Gap: func() { wake(s.kick) },
	})
	s.running.Go(func() { s.follow(s.life) })
	return &Filter{o: o, shared: s}, nil
}

func (o Options) withSharedDefaults() (Options, error) {
	if o.Name == "" {
		return o, errors.New("bloom: Name must not be empty")
	}
	o, err := o.withDefaults()
	if err != nil {
		return o, err
	}
	if o.MaxLag == 0 {
		o.MaxLag = time.Second
	}
	if o.MaxLag < 20*time.Millisecond {
		return o, fmt.Errorf("bloom: MaxLag must be at least 20ms, is %v", o.MaxLag)
	}
	if _, err := newKey(o.Secret); err != nil {
		return o, err
	}
	o.Secret = slices.Clone(o.Secret)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o, nil
}

// shared is a filter whose authority is Redis.
type shared struct {
	// answering is what MayContain asks, nil as long as the filter abstains.
	answering atomic.Pointer[replica]
	o         Options
	quoted    string // the name, for logs

	_ [64]byte // what Adds write stays off the line that every MayContain reads

	*authority
	self        string
	hub         *redisconn.Link
	unsubscribe func()
	life        context.Context // ends with Close
	end         context.CancelCauseFunc
	running     sync.WaitGroup
	kick        chan struct{} // there may be news in the log
	asked       chan struct{} // somebody waits for the next look into it

	mu        sync.Mutex    // guards what follows, and is not held over a call to Redis
	inc       *incarnation  // nil while it is not known
	state     state         // newest that is known; a guess
	replica   *replica      // follows the log; it answers unless it is nil
	candidate *replica      // loaded, about to replace it
	own       entry         // newest add of our own
	applied   entry         // how far the replicas have followed the log
	ask       *ask          // of those who wait for the next look, or nil
	changed   chan struct{} // closed when another replica answers
	warned    string        // the generation that was said to be full

	rebuilding int // Rebuilds that run here

	recentOf key    // what those in recent were hashed with
	recent   recent // adds of our own; it has a lock of its own

	adds     atomic.Uint64
	removes  atomic.Uint64
	rebuilds atomic.Uint64
	loads    atomic.Uint64
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// incarnation returns the filter that stands in Redis, as far as is known.
func (s *shared) incarnation(ctx context.Context) (*incarnation, error) {
	s.mu.Lock()
	inc := s.inc
	s.mu.Unlock()
	if inc != nil {
		return inc, nil
	}
	return s.find(ctx, false)
}

// find asks Redis for the filter that stands there, and makes one if there is none:
// a complete one that holds nothing, or one that abstains.
func (s *shared) find(ctx context.Context, complete bool) (*incarnation, error) {
	found, err := s.ensure(ctx, complete)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inc == nil {
		s.inc = found
	}
	return s.inc, nil
}

// drop abstains: what was known of inc no longer holds, and Redis is asked again for
// what there is.
func (s *shared) drop(inc *incarnation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inc != inc {
		return
	}
	s.inc = nil
	s.replica, s.candidate, s.state, s.own, s.applied = nil, nil, state{}, entry{}, entry{}
	s.answering.Store(nil)
}

// warnFull says once of a generation that it holds more ids than the Capacity. What
// tells so is an estimate, off by a percent or two in small filters: hence the room,
// without which half of those that hold just their Capacity would be reported. It is
// called with mu held.
func (s *shared) warnFull() {
	room := s.o.Capacity/20 + 10
	if r := s.replica; r != nil && s.warned != r.name && r.ids() > s.o.Capacity+room {
		s.warned = r.name
		s.o.Logger.Warn("bloom: filter holds more ids than its Capacity", "filter", s.quoted,
			"capacity", s.o.Capacity, "ids", r.ids(), "false_positive_rate", r.rate())
	}
}

func (s *shared) close() {
	s.end(ErrClosed)
	s.drop(s.known())
	s.running.Wait()
	s.recent.drop()
	s.unsubscribe()
	s.hub.Close()
}

func (s *shared) known() *incarnation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inc
}

func (s *shared) stats() Stats {
	stats := Stats{
		Capacity: s.o.Capacity, Abstaining: true,
		Adds: s.adds.Load(), Removes: s.removes.Load(), Rebuilds: s.rebuilds.Load(), Loads: s.loads.Load(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stats.Rebuilding = s.rebuilding > 0
	r := s.answering.Load()
	if r == nil {
		return stats
	}
	left := time.Duration(r.until.Load() - now())
	stats.Lag = s.o.MaxLag - left
	stats.Complete, stats.Saturated = true, r.saturated.Load()
	stats.Abstaining = stats.Saturated || left <= 0
	stats.describe(r.generation)
	return stats
}

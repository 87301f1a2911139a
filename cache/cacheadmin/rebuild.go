package cacheadmin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/internal/contain"
)

var (
	errNoScan   = errors.New("this cache was given to cacheadmin without a scan of its keys: see cacheadmin.WithScan")
	errUnderWay = errors.New("a rebuild of this filter is under way in this process")
)

// WithScan returns c with what "rebuildfilter" needs: scan, which returns all keys that exist, as
// for [cache.Cache.KeepFilter]. It is called for each rebuild. New returns an error if scan is nil,
// or if the cache has no filter that can be rebuilt.
//
// A rebuild runs on after the request that began it, until it has ended or the cache is closed.
// "filter" shows how many keys it has read; its end is logged with the operator's name. A further
// request to the same process is refused while it runs. Of several processes one reads the keys at
// a time, [cache.Cache.KeepFilter] included: the others wait, and end with it.
func WithScan[K comparable, V any](c *cache.Cache[K, V], scan func(context.Context) iter.Seq2[K, error]) Cache {
	s := &scanned{Cache: c}
	closing := c.Inside().Audit.(inside.Audit[K, V]).Closing
	s.run = func() error {
		err := c.RebuildFilter(closing, func(yield func(K, error) bool) {
			s.reading()
			for key, err := range scan(closing) {
				if !yield(key, err) {
					return
				}
				s.read()
			}
		})
		if closing.Err() != nil {
			return cache.ErrClosed
		}
		return err
	}
	_, can := c.Inside().Filter.(interface {
		Rebuild(ctx context.Context, ids iter.Seq2[string, error]) error
	})
	switch {
	case scan == nil:
		s.unfit = fmt.Errorf("cacheadmin: WithScan: the scan of the cache %q is nil", c.Name())
	case !can:
		s.unfit = fmt.Errorf("cacheadmin: WithScan: the cache %q has no filter that can be rebuilt", c.Name())
	}
	return s
}

// scanned is a cache whose filter can be rebuilt.
type scanned struct {
	Cache
	run   func() error // rebuilds the filter
	unfit error        // why that is not possible

	mu   sync.Mutex // guards last
	last progress   // of the rebuild that runs, or of the last one
}

// progress says how a rebuild of a filter stands. The zero progress is that of a process that has
// begun none.
type progress struct {
	State string    `json:"state"` // "none", "waiting", "reading", "done", "done elsewhere" or "failed"
	Who   string    `json:"who,omitempty"`
	Began time.Time `json:"began,omitzero"`
	Ended time.Time `json:"ended,omitzero"`
	Keys  uint64    `json:"keys"` // read so far
	Error string    `json:"error,omitempty"`
}

// The states of a rebuild. It waits for a rebuild of another process or of KeepFilter, and for the
// other processes to add again what they have added to a filter that Redis has lost.
const (
	waiting   = "waiting"
	reading   = "reading"
	done      = "done"
	elsewhere = "done elsewhere" // another rebuild has ended meanwhile
	failed    = "failed"
)

func (s *scanned) progress() *progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.last
	if now.State == "" {
		now.State = "none"
	}
	return &now
}

// start begins a rebuild, unless one runs.
func (s *scanned) start(who string, log *slog.Logger) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.State == waiting || s.last.State == reading {
		return fmt.Errorf("%w: %s began it at %s", errUnderWay, s.last.Who, s.last.Began.Format(time.TimeOnly))
	}
	s.last = progress{State: waiting, Who: who, Began: time.Now()}
	go contain.Call(s.run, func(err error) { s.end(err, log) })
	return nil
}

func (s *scanned) reading() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.State, s.last.Keys = reading, 0
}

func (s *scanned) read() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.Keys++
}

// end notes the result of a rebuild, and logs it.
func (s *scanned) end(err error, log *slog.Logger) {
	s.mu.Lock()
	s.last.Ended = time.Now()
	switch {
	case err != nil:
		s.last.State, s.last.Error = failed, err.Error()
	case s.last.State == waiting:
		s.last.State = elsewhere
	default:
		s.last.State = done
	}
	last := s.last
	s.mu.Unlock()
	args := []any{"who", last.Who, "cache", s.Name(), "keys", last.Keys, "took", last.Ended.Sub(last.Began)}
	if err != nil {
		log.Warn("a rebuild of a filter that cacheadmin began has failed", append(args, "error", err)...)
		return
	}
	log.Info("a rebuild of a filter that cacheadmin began has ended", append(args, "state", last.State)...)
}

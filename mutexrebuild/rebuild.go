package mutexrebuild

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/failpoint"
)

// refusals is how often a flight that was told to load again does so. Who is
// refused more often is on a key that is written faster than it can be loaded.
const refusals = 2

// answer finds or builds the value of a flight.
func (g *Group[T]) answer(f *flight[T]) (Result[T], error) {
	if g.store == nil {
		return g.rebuildAlone(f)
	}
	g.prepare(f)
	data, err := g.store.get(f.ctx, f.id)
	if err != nil {
		return g.unknown(f)
	}
	if result, ok := g.decode(f, data); ok {
		return result, nil
	}
	return g.rebuild(f, data)
}

// unknown goes on when Redis has given no answer. That is not a miss: there may
// be a value, and somebody may have the lease.
func (g *Group[T]) unknown(f *flight[T]) (Result[T], error) {
	g.counts.unknown.Add(1)
	return g.loadUnshared(f, true)
}

// rebuild takes the lease of a key, loads and publishes. Seen is what stands in
// Redis and is no answer.
func (g *Group[T]) rebuild(f *flight[T], seen []byte) (Result[T], error) {
	if err := g.heldBack(f); err != nil {
		return Result[T]{}, err
	}
	patience := time.NewTimer(g.o.WaitBudget)
	defer patience.Stop()
	wake := g.listen(f)
	poll := poll{pause: firstPoll}
	var last, beside Result[T] // refused, loaded beside a writer
	loadedBeside, cut := false, 0
	failpoint.At("missed")
	for refused := 0; refused <= refusals; {
		token := newToken()
		drain(wake)
		g.prepare(f)
		grant, err := g.store.begin(f.ctx, f.id, token, seen)
		if err != nil {
			return g.unknown(f)
		}
		switch grant.verdict {
		case published:
			if result, ok := g.decode(f, grant.data); ok {
				return result, nil
			}
			seen = grant.data
		case tooLong:
			g.counts.unfit.Add(1)
			seen = grant.data
		case held:
			// A load beside a writer may see a write before its invalidation.
			// That is in order as long as nobody can find the value before it
			// in Redis: if a hold stands after the load too, nothing is there.
			if loadedBeside {
				g.backTo(f, cut)
				return beside, nil
			}
			g.counts.heldOff.Add(1)
			if beside, err = g.loadUnshared(f, false); err != nil {
				return beside, err
			}
			beside.Held, loadedBeside, cut = true, true, f.cut
			continue
		case wait:
			if !g.await(f, wake, poll.next(grant.remaining, g.hub.hub.Live()), patience.C) {
				g.counts.gaveUp.Add(1)
				return g.loadUnshared(f, true)
			}
		case granted:
			failpoint.At("granted")
			result, published, err := g.loadLeased(f, token, seen)
			if published || err != nil || failpoint.KeepRefused {
				return result, err
			}
			last = result
			refused++
		}
		loadedBeside = false
	}
	return last, nil
}

// loadLeased loads under the lease that token stands for, and publishes. Without
// an error and not published, the result is good for those who had joined when
// the load began, and the key wants another try. Seen is what stands in Redis.
func (g *Group[T]) loadLeased(f *flight[T], token string, seen []byte) (result Result[T], published bool, err error) {
	began := g.note(f)
	mark := f.result.Mark
	leased := true
	defer func() {
		if leased { // there is nothing to publish, or the codec has panicked
			g.store.abort(f.ctx, f.id, token)
		}
	}()
	value, err := g.load(f, false, func() { g.store.renew(f.ctx, f.id, token) })
	if err != nil {
		return result, false, err
	}
	data, ttl, err := g.format.Encode(f.id, value)
	result = Result[T]{Value: value, Origin: Unshared, Condition: Fresh, Mark: mark, Bytes: len(data)}
	if err != nil || !g.storable(data, ttl) {
		g.counts.unpublished.Add(1)
		if len(seen) > 0 { // what this value has overtaken must not go on to answer
			leased = false
			_, _ = g.store.commit(f.ctx, f.id, token, nil, 0)
		}
		g.backTo(f, began)
		return result, true, nil // there is nothing to try again
	}
	g.note(f)
	if failpoint.SealEarly {
		g.drop(f)
	}
	failpoint.At("commit")
	leased = false
	stored, err := g.store.commit(f.ctx, f.id, token, data, ttl)
	failpoint.At("committed")
	switch {
	case err != nil: // it may be published or not; only those who asked before the load can know the value as current
		g.counts.unknown.Add(1)
		g.backTo(f, began)
		return result, true, nil
	case !stored:
		g.counts.refused.Add(1)
		g.backTo(f, began)
		return result, false, nil
	}
	result.Origin = Built
	return result, true, nil
}

// loadUnshared loads without a lease and publishes nothing.
func (g *Group[T]) loadUnshared(f *flight[T], degraded bool) (Result[T], error) {
	g.prepare(f)
	if degraded {
		g.counts.degraded.Add(1)
	}
	value, err := g.load(f, degraded, nil)
	if err != nil {
		return Result[T]{}, err
	}
	return g.result(f, value, Unshared, g.size(f.id, value)), nil
}

// rebuildAlone is rebuild in a process without Redis: what the lease is among
// processes, f.void is among this process's own callers.
func (g *Group[T]) rebuildAlone(f *flight[T]) (Result[T], error) {
	for refused := 0; ; refused++ {
		g.prepare(f)
		began := f.cut
		g.unvoid(f)
		value, err := g.load(f, false, nil)
		if err != nil {
			return Result[T]{}, err
		}
		result := g.result(f, value, Unshared, g.size(f.id, value))
		if g.confirm(f) {
			return result, nil
		}
		g.counts.refused.Add(1)
		if refused == refusals {
			g.backTo(f, began)
			return result, nil
		}
	}
}

// load runs the flight's loader on a goroutine of its own, with renew called
// every third of a lease, and returns at the loader's end or at LoadTimeout,
// whichever is first.
func (g *Group[T]) load(f *flight[T], degraded bool, renew func()) (T, error) {
	var value, none T
	if g.Closed() {
		return none, ErrClosed
	}
	ctx, cancel := context.WithTimeoutCause(g.inside(f), g.o.LoadTimeout, ErrLoadTimeout)
	defer cancel()
	defer context.AfterFunc(g.closing, cancel)()

	g.counts.loads.Add(1)
	g.active.Add(1)
	ended := contain.Go(func() (err error) {
		defer g.active.Done()
		value, err = f.load(ctx, degraded) // read below only after the end
		return err
	})
	ticker := time.NewTicker(g.o.Lease / 3)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			failpoint.At("loaded")
			if err != nil {
				g.counts.loadErrors.Add(1)
				return none, g.loadError(ctx, err)
			}
			return value, nil
		case <-ctx.Done():
			g.counts.loadErrors.Add(1)
			return none, g.loadError(ctx, nil)
		case <-f.late:
			g.lookAgain(f)
		case <-ticker.C:
			if renew != nil {
				renew()
			}
		}
	}
}

// loadError makes the end of the load's own context recognizable: a loader
// reports it as its context's error, which could be taken for a caller's.
func (g *Group[T]) loadError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil:
		return err
	case g.closing.Err() != nil:
		return ErrClosed
	case err == nil || errors.Is(err, ctx.Err()):
		return ErrLoadTimeout
	}
	return err
}

// prepare comes before each operation that may decide a flight's result.
func (g *Group[T]) prepare(f *flight[T]) {
	g.note(f)
	if g.events.Mark != nil {
		f.result.Mark = g.events.Mark(f.id)
	}
}

// backTo takes the cut back to a load's beginning: its result was not published,
// so it says nothing to those who came later.
func (g *Group[T]) backTo(f *flight[T], cut int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.cut = cut
}

func (g *Group[T]) result(f *flight[T], value T, from Origin, size int) Result[T] {
	return Result[T]{Value: value, Origin: from, Condition: Fresh, Mark: f.result.Mark, Bytes: size}
}

// storable reports whether Redis may hold data for ttl.
func (g *Group[T]) storable(data []byte, ttl time.Duration) bool {
	return ttl >= time.Millisecond && len(data) <= g.o.MaxBytes
}

// size encodes a value only to know how large it is.
func (g *Group[T]) size(id string, value T) int {
	data, _, err := g.format.Encode(id, value)
	if err != nil {
		return 0
	}
	return len(data)
}

// decode reads what stands in Redis, and reports whether it is an answer. A Spare
// is set aside, for those who had joined before it was read.
func (g *Group[T]) decode(f *flight[T], data []byte) (result Result[T], answer bool) {
	if len(data) == 0 {
		return result, false
	}
	value, condition := g.judge(f.id, data)
	result = g.result(f, value, Found, len(data))
	result.Condition = condition
	switch condition {
	case Fresh:
		return result, true
	case Aging:
		result.head = string(head(data))
		return result, true
	case Spare:
		g.setAside(f, &result, f.cut)
	default:
		g.counts.unfit.Add(1)
	}
	return result, false
}

// judge decodes what stands in Redis. Of what is too long there is only the beginning,
// which some formats might take for a value.
func (g *Group[T]) judge(id string, data []byte) (value T, c Condition) {
	if len(data) > g.o.MaxBytes {
		return value, Unfit
	}
	return g.format.Decode(id, data)
}

// await waits until something may have happened to the key: a message says so,
// or it is time to look without one. It reports false when the flight has waited
// enough.
func (g *Group[T]) await(f *flight[T], wake <-chan struct{}, poll time.Duration, patience <-chan time.Time) bool {
	g.counts.waits.Add(1)
	timer := time.NewTimer(poll)
	defer timer.Stop()
	select {
	case <-wake:
		g.counts.wakes.Add(1)
	case <-timer.C:
		g.counts.polls.Add(1)
	case <-f.late:
		g.lookAgain(f)
	case <-g.closing.Done(): // there will be no load
		return false
	case <-patience:
		return false
	}
	return true
}

// listen makes the channel that tells of messages about a flight's id.
func (g *Group[T]) listen(f *flight[T]) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.wake = make(chan struct{}, 1)
	return f.wake
}

// drain forgets a message that came before the question was asked again.
func drain(wake <-chan struct{}) {
	select {
	case <-wake:
	default:
	}
}

// A poll is the safety net under the wake-up messages: it looks at growing
// intervals, from 5 ms where there are no messages and from 50 ms where there
// are, to at most 250 ms.
type poll struct{ pause time.Duration }

const (
	firstPoll = 5 * time.Millisecond
	firstCalm = 50 * time.Millisecond // messages arrive, so looking is only for lost ones
	maxPoll   = 250 * time.Millisecond
)

// next gives the time to the next look, which is never later than the moment at
// which the lease of a dead holder ends.
func (p *poll) next(remaining time.Duration, live bool) time.Duration {
	if live {
		p.pause = max(p.pause, firstCalm)
	}
	pause := time.Duration(float64(p.pause) * (0.75 + 0.5*rand.Float64()))
	p.pause = min(2*p.pause, maxPoll)
	return min(pause, remaining+2*time.Millisecond)
}

// inside marks ctx as that of a load of id, for loading.
func (g *Group[T]) inside(f *flight[T]) context.Context {
	return context.WithValue(f.ctx, insideKey{}, &inside{group: g, id: f.id, outer: f.ctx.Value(insideKey{})})
}

// loading reports whether ctx is that of a load of id in this group.
func (g *Group[T]) loading(ctx context.Context, id string) bool {
	for at, _ := ctx.Value(insideKey{}).(*inside); at != nil; at, _ = at.outer.(*inside) {
		if at.group == g && at.id == id {
			return true
		}
	}
	return false
}

type insideKey struct{}

type inside struct {
	group any
	id    string
	outer any // the next *inside outwards, if a load called for another key
}

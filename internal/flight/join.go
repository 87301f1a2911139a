package flight

import "context"

// Join adds the caller to the flight of id. If no flight runs, Join opens one, which the
// caller then has to have run. It returns ErrClosed, ErrReentrant, or the held error of a
// load of id.
func (g *Group[R]) Join(ctx context.Context, id string) (c Caller[R], opened bool, err error) {
	return g.JoinIn(ctx, id, false, false, anew[R])
}

func anew[R any]() *Flight[R] { return &Flight[R]{} }

// JoinIn is Join for a caller who may be strict or have a fallback. With a fallback it also
// returns errors that are held only for such callers. If it opens a flight, it uses the zero
// Flight that room returns, so that the caller can allocate it in one piece with the job that
// runs it. room is called with the group's mutex held.
func (g *Group[R]) JoinIn(ctx context.Context, id string, strict, fallback bool, room func() *Flight[R]) (c Caller[R], opened bool, err error) {
	if g.isLoading(ctx, id) {
		return c, false, ErrReentrant
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return c, false, ErrClosed
	}
	s := &g.plain
	if strict {
		s = &g.strict
	}
	among := g.flightsOf(ctx, s)
	f := among[id]
	if f == nil {
		if err := s.answer(id, fallback); err != nil {
			return c, false, err
		}
		f, opened = g.open(id, s, among, room()), true
	}
	f.fallback = f.fallback || fallback
	return f.join(ctx), opened, nil
}

// JoinRunning adds a caller who is not strict to the flight of id if one runs, and opens none. It
// returns ErrClosed or ErrReentrant where Join does.
func (g *Group[R]) JoinRunning(ctx context.Context, id string) (c Caller[R], running bool, err error) {
	if g.isLoading(ctx, id) {
		return c, false, ErrReentrant
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return c, false, ErrClosed
	case g.plain.flights[id] == nil && g.plain.nested[id] == nil:
		return c, false, nil
	}
	f := g.flightsOf(ctx, &g.plain)[id]
	if f == nil {
		return c, false, nil
	}
	return f.join(ctx), true, nil
}

// flightsOf returns the flights of s that a caller may join. The caller holds g.mu.
func (g *Group[R]) flightsOf(ctx context.Context, s *side[R]) map[string]*Flight[R] {
	if g.Nested != nil && g.Nested(ctx) {
		return s.nested
	}
	return s.flights
}

// join gives a caller with ctx the next number. The caller holds Group.mu.
func (f *Flight[R]) join(ctx context.Context) Caller[R] {
	f.joined++
	f.arrived(ctx)
	return Caller[R]{f, f.joined}
}

// open makes f the flight of id that callers find in among. The caller holds g.mu.
func (g *Group[R]) open(id string, s *side[R], among map[string]*Flight[R], f *Flight[R]) *Flight[R] {
	f.among = among
	among[id] = g.begin(id, s, f)
	return f
}

// begin counts f as a running flight of id in s. The caller holds g.mu.
func (g *Group[R]) begin(id string, s *side[R], f *Flight[R]) *Flight[R] {
	g.running++
	f.ID, f.group, f.side = id, g, s
	return f
}

// Alone returns a flight for a refresh, which no caller joins or waits for. It returns
// nil while another flight of Alone for id runs, while an error of id is held, and after
// Close.
func (g *Group[R]) Alone(id string) *Flight[R] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.plain.failures[id]; g.closed || g.alone[id] || h != nil && h.refreshes.answers() || g.plain.answer(id, true) != nil {
		return nil
	}
	g.alone[id] = true
	f := g.begin(id, &g.plain, anew[R]())
	f.alone = true
	return f
}

// Apart returns a flight that no caller joins or waits for, whatever other flights run,
// for work that tells its owner how it ended. Its error is not held. It returns ErrClosed,
// or ErrReentrant if ctx belongs to a load of id.
func (g *Group[R]) Apart(ctx context.Context, id string) (*Flight[R], error) {
	if g.isLoading(ctx, id) {
		return nil, ErrReentrant
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, ErrClosed
	}
	f := g.begin(id, &g.plain, anew[R]())
	f.apart = true
	return f, nil
}

package flight

import "context"

// Callers says what kind of caller joins.
type Callers struct {
	Strict   bool // the caller refuses values that others take
	Fallback bool // the caller has a fallback: errors that are held only for such callers are returned too
}

// Join adds a caller whom as describes to the flight of id. If none runs, Join opens one, which the caller
// then has to have run: the zero Flight that open returns, so that the caller can allocate it in one piece
// with what runs it. Join calls open with the group's mutex held. With a nil open it opens none and returns
// no held error: c.Flight is nil if none runs. It returns ErrClosed, ErrReentrant, or the held error of a
// load of id.
func (g *Group) Join(ctx context.Context, id string, as Callers, open func() *Flight) (c Caller, opened bool, err error) {
	if g.isLoading(ctx, id) {
		return c, false, ErrReentrant
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	k := plain
	if as.Strict {
		k = strict
	}
	switch {
	case g.closed:
		return c, false, ErrClosed
	case open == nil && g.flights[k][id] == nil && g.flights[k|nested][id] == nil: // without a call of Nested: each hit in Redis ends here
		return c, false, nil
	case g.Nested != nil && g.Nested(ctx):
		k |= nested
	}
	f := g.flights[k][id]
	switch {
	case f != nil:
	case open == nil:
		return c, false, nil
	default:
		audience := everybody
		if as.Fallback {
			audience = withFallback
		}
		if err := g.failures[k.side()][id].heldFor(audience); err != nil {
			return c, false, err
		}
		f, opened = g.open(id, k, open()), true
	}
	f.fallback = f.fallback || as.Fallback
	return f.join(ctx), opened, nil
}

// join gives a caller with ctx the next number. The caller holds Group.mu.
func (f *Flight) join(ctx context.Context) Caller {
	f.joined++
	f.arrived(ctx)
	return Caller{f, f.joined}
}

// open makes f the running flight of id of kind k. The caller holds g.mu.
func (g *Group) open(id string, k kind, f *Flight) *Flight {
	g.running++
	f.ID, f.group, f.kind = id, g, k
	if k != apart {
		g.flights[k][id] = f
	}
	return f
}

// Alone returns a flight for a refresh, which no caller joins or waits for. It returns
// nil while another flight of Alone for id runs, while an error of id is held, and after
// Close.
func (g *Group) Alone(id string) *Flight {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.flights[alone][id] != nil || g.failures[plain][id].heldFor(refreshes) != nil {
		return nil
	}
	return g.open(id, alone, &Flight{})
}

// Apart returns a flight that no caller joins or waits for, whatever other flights run,
// for work that tells its owner how it ended. Its error is not held. It returns ErrClosed,
// or ErrReentrant if ctx belongs to a load of id.
func (g *Group) Apart(ctx context.Context, id string) (*Flight, error) {
	if g.isLoading(ctx, id) {
		return nil, ErrReentrant
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, ErrClosed
	}
	return g.open(id, apart, &Flight{}), nil
}

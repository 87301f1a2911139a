package flight

// Peek reports whether a flight of id runs that others can join, and the error that
// answers for id, nil if none does. It changes nothing.
func (g *Group[R]) Peek(id string) (running bool, held error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.held[id]; h != nil && h.answers(true) {
		held = h.err
	}
	return g.flights[id] != nil || g.nested[id] != nil, held
}

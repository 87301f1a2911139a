package flight

// Peek reports whether a flight of id runs that others can join, and the error that
// answers for id to callers who are not strict, nil if none does. It changes nothing.
func (g *Group[R]) Peek(id string) (running bool, held error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range []*side[R]{&g.plain, &g.strict} {
		running = running || s.flights[id] != nil || s.nested[id] != nil
	}
	return running, g.plain.answer(id, true)
}

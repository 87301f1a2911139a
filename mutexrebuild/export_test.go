package mutexrebuild

// Joined returns how many callers have joined the flight of id that is under way.
func (g *Group[T]) Joined(id string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.flights[id]; f != nil && f.err == nil {
		return f.joined
	}
	return 0
}

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

// Running returns how many refreshes are under way.
func (g *Group[T]) Running() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.renewal.running
}

// SpareFor returns how many callers of the flight of id may take its Spare.
func (g *Group[T]) SpareFor(id string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.flights[id]; f != nil && f.spare != nil {
		return f.spareCut
	}
	return 0
}

// Writes are the names, for EVALSHA, of the scripts that invalidate.
func Writes() []string {
	return []string{invalidateScript.Hash(), claimScript.Hash(), setScript.Hash()}
}

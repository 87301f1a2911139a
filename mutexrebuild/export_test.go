package mutexrebuild

// Joined returns how many callers have joined the flight of id that is under way.
func Joined(g *Group, id string) int { return g.flights.Joined(id) }

// Writes are the names, for EVALSHA, of the scripts that invalidate.
func Writes() []string {
	return []string{invalidateScript.Hash(), claimScript.Hash(), setScript.Hash()}
}

package mutexrebuild

// Joined returns how many callers have joined the flight of id that is under way.
func Joined(g *Group, id string) int { return g.flights.Joined(id) }

// Claim is the name, for EVALSHA, of the script that begins a Set.
func Claim() string { return claimScript.Hash() }

// Writes are the names, for EVALSHA, of the scripts that invalidate.
func Writes() []string {
	return []string{invalidateScript.Hash(), claimScript.Hash(), setScript.Hash()}
}

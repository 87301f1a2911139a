package mutexrebuild

// Joined returns how many callers have joined the flight of id that is under way.
func Joined(g *Group, id string) int { return g.flights.Joined(id) }

// Live reports whether messages of other processes arrive reliably.
func (g *Group) Live() bool { return g.fleet.Live() }

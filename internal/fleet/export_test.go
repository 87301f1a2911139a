package fleet

// Epoch is the time of the last Clear that this process knows.
func (g *Group) Epoch() uint64 { return g.epoch.known.Load() }

// EpochScript is the name by which Redis knows the script that reads clears.
var EpochScript = epochScript.Hash()

// RecentClears is how many clears this process remembers for ReplicaLag.
func (g *Group) RecentClears() int {
	g.epoch.mu.Lock()
	defer g.epoch.mu.Unlock()
	return len(g.epoch.recent)
}

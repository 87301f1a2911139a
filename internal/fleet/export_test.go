package fleet

import "context"

// Epoch is the time of the last Clear that this process knows.
func (g *Group) Epoch() uint64 { return g.epoch.known.Load() }

// EpochScript is the name by which Redis knows the script that reads clears.
var EpochScript = epochScript.Hash()

// InvalidateScript is the name by which Redis knows the script that invalidates, holds and lifts.
var InvalidateScript = invalidateScript.Hash()

// RecentClears is how many clears this process remembers for ReplicaLag.
func (g *Group) RecentClears() int {
	g.epoch.mu.Lock()
	defer g.epoch.mu.Unlock()
	return len(g.epoch.recent)
}

// DeferHold makes a hold that has not arrived yet, and the functions that let it arrive and lift it.
func (g *Group) DeferHold(ctx context.Context, id string) (arrive, lift func() error) {
	token := newToken()
	do := func(h holds) func() error {
		return func() error { return g.leases.invalidate(ctx, []string{id}, h) }
	}
	return do(holds{place: token, life: g.o.Hold}), do(holds{lift: token})
}

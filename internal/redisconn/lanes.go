package redisconn

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// lanes has the lanes of a Conn: one, or in a cluster one for each node, so that a node that
// hangs does not delay operations on the others. Operations on a cluster still go through the
// cluster client, which knows better when a slot moves.
type lanes struct {
	conn         *Conn
	notesOutages bool
	cluster      *redis.ClusterClient  // nil: there is one lane
	one          *lane                 // for all keys; in a cluster, until its nodes are known
	reload       func(context.Context) // has the cluster client reload its slots; nil: the client has no slots
	known        atomic.Bool           // the cluster client knows its nodes, and need not query them first

	mu     sync.RWMutex // guards what follows
	byNode map[string]*lane
}

func (ls *lanes) init(c *Conn, notesOutages bool) {
	ls.conn, ls.notesOutages = c, notesOutages
	ls.cluster, _ = c.client.user.(*redis.ClusterClient)
	if c, ok := c.client.user.(interface{ ReloadState(context.Context) }); ok {
		ls.reload = c.ReloadState
	}
	ls.one = ls.open(address(c.client.user))
	ls.byNode = map[string]*lane{}
}

func (ls *lanes) open(address string) *lane {
	l := &lane{conn: ls.conn, maxLone: ls.conn.client.mayBeLone(), maxTrips: maxTrips, maxOps: maxOps, maxLeft: maxLeft}
	if ls.conn.client.plain == nil && ls.cluster == nil {
		// Such a client may send operations anywhere. One that hangs must not delay others, so each
		// is a trip of its own.
		l.maxTrips, l.maxOps, l.maxLeft = math.MaxInt, 1, maxLeftEach
	}
	if ls.notesOutages {
		l.outage = newOutage(ls.conn, address)
	}
	return l
}

// of returns the lane to the node that has key.
func (ls *lanes) of(key string) *lane {
	if ls.cluster == nil || !ls.known.Load() {
		return ls.one
	}
	node, err := ls.cluster.MasterForKey(context.Background(), key) // makes no call, since the nodes are known
	if err != nil {
		return ls.one
	}
	addr := node.Options().Addr
	ls.mu.RLock()
	l := ls.byNode[addr]
	ls.mu.RUnlock()
	if l != nil {
		return l
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l = ls.byNode[addr]; l == nil {
		l = ls.open(addr)
		ls.byNode[addr] = l
	}
	return l
}

// lookAgain has the cluster client reload which node has which slots, because a node has not
// replied. A replica may have taken its place; by itself the client notices that only after its
// ClusterStateReloadInterval of a minute, because no other node replies MOVED for a dead one.
// The client reloads in the background, at most once in 200 ms.
func (ls *lanes) lookAgain() {
	if ls.reload != nil {
		ls.reload(context.Background())
	}
}

// each calls f with each lane.
func (ls *lanes) each(f func(*lane)) {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	f(ls.one)
	for _, l := range ls.byNode {
		f(l)
	}
}

// endOutages ends the probes of all lanes.
func (ls *lanes) endOutages() {
	ls.each(func(l *lane) { l.outage.close() })
}

// doMany sends ops to their nodes, in parts of at most maxOps, and waits for the replies. It
// returns for each op why it has no reply, nil if it has one. It calls late with the index of
// each op that was sent and ends after doMany has returned.
func (c *Conn) doMany(ctx context.Context, ops []op, late func(int)) (errs []error) {
	parts := c.lanes.parts(ops)
	if len(parts) == 1 {
		parts[0].err = parts[0].lane.do(ctx, parts[0].ops, parts[0].each(late))
	} else {
		for _, p := range parts {
			p.trip, p.err = p.lane.join(ctx, p.ops)
		}
		for _, p := range parts {
			if p.err == nil {
				p.err = p.trip.wait(ctx, p.each(late))
			}
		}
	}
	errs = make([]error, len(ops))
	for _, p := range parts {
		if p.err != nil {
			p.each(func(i int) { errs[i] = p.err })()
		}
	}
	return errs
}

// A part has the operations of a doMany that share a trip.
type part struct {
	lane *lane
	ops  []op
	at   []int // the indices of ops among all; nil: they follow each other
	from int   // the index of the first op, if at is nil
	trip *trip
	err  error
}

// parts splits operations by lane.
func (ls *lanes) parts(ops []op) (parts []*part) {
	if ls.cluster == nil {
		for some := range slices.Chunk(ops, maxOps) {
			parts = append(parts, &part{lane: ls.one, ops: some, from: maxOps * len(parts)})
		}
		return parts
	}
	open := map[*lane]*part{}
	for i, op := range ops {
		l := ls.of(op.key)
		p := open[l]
		if p == nil || len(p.ops) == maxOps {
			p = &part{lane: l}
			open[l] = p
			parts = append(parts, p)
		}
		p.ops, p.at = append(p.ops, op), append(p.at, i)
	}
	return parts
}

// each returns a function that calls f with the index of each operation of the part, or
// nil if f is nil.
func (p *part) each(f func(int)) func() {
	if f == nil {
		return nil
	}
	return func() {
		for n := range p.ops {
			if p.at != nil {
				f(p.at[n])
			} else {
				f(p.from + n)
			}
		}
	}
}

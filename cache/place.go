package cache

import (
	"errors"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/mutexrebuild"
)

// loadsAlone reports whether jobs are one key that is loaded by itself, and for which no
// lease was asked yet.
func (c *Cache[K, V]) loadsAlone(jobs []*job[K, V]) bool {
	return len(jobs) == 1 && c.source.Load != nil && jobs[0].class == normal && !jobs[0].asked
}

// rebuildWithPlace is rebuild for one key that is loaded by itself. It asks for the lease
// when the key has a place at the breaker, and not before. Otherwise the first process to
// ask in a cold start would get the leases of all keys, and have them wait for its places
// while those of other processes are free.
//
//	process A, 64 places             process B, 64 places
//	wants 500 keys                   wants the same 500
//	places and leases for 1 to 64
//	                                 places for 1 to 64: Busy, places given back
//	                                 places and leases for 65 to 128
//	loads 1 to 64                    loads 65 to 128
//
// A key leaves the queue when another process has published it.
func (c *Cache[K, V]) rebuildWithPlace(j *job[K, V]) (again []*job[K, V]) {
	jobs := []*job[K, V]{j}
	var grants []mutexrebuild.Grant // nil: it has not asked
	var renewal *mutexrebuild.Renewal
	defer func() { renewal.Stop() }() // after a panic
	published, stop := c.fleet.Watch(j.ctx, j.id, j.seen)
	defer stop()
	c.loadOne(j, breaker.Call{
		Withdraw: published,
		Begin: func() error {
			stop()
			grants = c.askForLeases(jobs)
			switch grant := grants[0]; {
			case grant.Verdict == mutexrebuild.Granted:
				j.lease = grant.Lease
				renewal = c.leased(jobs)
				return nil
			case grant.Verdict == mutexrebuild.Held && !c.acceptShared(j, grant.Value, time.Now()):
				j.lease = grant.Lease
				c.besideWriter(jobs)
				return nil
			}
			return errNoLoad
		},
	})
	renewal.Stop()
	switch {
	case j.done.Load(): // what another flight shares beside the writer was the answer
		return nil
	case grants == nil:
		return c.rebuildWithoutPlace(j, j.loaded.err)
	}
	switch grants[0].Verdict {
	case mutexrebuild.Granted:
		return c.publishLoaded(jobs)
	case mutexrebuild.Held:
		return c.shareLoaded(jobs)
	}
	j.loaded = loaded[V]{} // its error is errNoLoad, or says that the call ended meanwhile
	return c.proceed(c.byVerdict(jobs, grants))
}

// rebuildWithoutPlace goes on with a key that got no place at the breaker, for the reason
// err. If the breaker has refused it, another process may be loading it or have published
// it, so it asks for the lease all the same.
func (c *Cache[K, V]) rebuildWithoutPlace(j *job[K, V], err error) (again []*job[K, V]) {
	jobs := []*job[K, V]{j}
	switch {
	case c.closed() || errors.Is(err, flight.ErrDeserted):
		c.finishLoaded(j)
		return nil
	case errors.Is(err, breaker.ErrWithdrawn):
		j.loaded = loaded[V]{}
		return jobs
	}
	grants := c.askForLeases(jobs)
	if grants[0].Verdict == mutexrebuild.Granted {
		c.fleet.Abort(j.ctx, grants[0].Lease)
		c.finishLoaded(j)
		return nil
	}
	j.loaded = loaded[V]{}
	return c.proceed(c.byVerdict(jobs, grants))
}

// errNoLoad ends a call of the breaker whose key is not to be loaded now.
var errNoLoad = errors.New("levee: nothing to load")

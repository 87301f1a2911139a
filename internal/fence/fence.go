// Package fence lets lock/redlock raise the fence of a lock of package lock. Raise is no
// method of lock.Lease, because no other package can use it correctly.
package fence

import "context"

// Raise raises the fence of the lock that lease holds to at least fence, on the server: the
// next holder gets a larger one. lease is a *lock.Lease on one lock; its own Fence does not
// change. Raise takes one round trip. Its error matches lock.ErrLost if the lease is no longer
// held. Package lock sets this variable.
var Raise func(ctx context.Context, lease any, fence int64) error

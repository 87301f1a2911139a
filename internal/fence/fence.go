// Package fence lets lock/redlock raise the fence of a lock of package lock. It is no
// method of a Lease, because nobody else can use it right.
package fence

import "context"

// Raise makes the fence of the lock that lease holds at least fence, on the server: the
// next holder's is larger. lease is a *lock.Lease on one lock, whose own Fence stays as it
// is. It is one round trip. The error matches lock.ErrLost if the lease does not stand.
// Package lock sets it.
var Raise func(ctx context.Context, lease any, fence int64) error

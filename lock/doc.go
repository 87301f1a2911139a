// Package lock is a distributed lock over Redis: leases that are renewed while
// their holder lives, a queue that wakes one waiter and no herd, and a fence on
// every lease.
//
//	locker, err := lock.New(rdb, lock.Options{})
//	defer locker.Close()
//	err = locker.Do(ctx, "coupon:66", func(ctx context.Context, lease *lock.Lease) error {
//		return claim(ctx, lease.Fence())
//	})
//
// It works with Redis 6.2 or Valkey and newer, standalone, behind Sentinel and as
// a Cluster.
//
// # What it promises
//
//   - As long as Redis keeps its memory and its clock goes forward evenly, one
//     holder at a time. The context of a lease ends before Redis can give the lock
//     to another, also when Redis is silent or the machine was asleep.
//   - When a process dies, its locks are free when their leases end, after at most
//     Options.Lease.
//   - A later lease has a larger fence. While Redis remembers the lock, this holds
//     whatever its clock does. After Redis has lost its memory, it holds if its clock is
//     past the last fence.
//   - Unlock frees the lock of its own lease and never that of a later one, and reports
//     a lease that was lost. It works with a context that has ended.
//   - Every operation is safe to repeat after a lost reply. A lock granted to a caller
//     who has left is released at once.
//   - Waiting processes are served in the order of their arrival, and so are the waiters
//     of one process. A process that has a mutex may first serve 16 of its waiters, for
//     50 ms: they hand it on among themselves (Options.StrictFIFO). A lost wake-up costs a
//     second at most. A process that dies while it waits costs the others two seconds once,
//     however many of its goroutines waited; with StrictFIFO up to a thousand of them.
//   - A free lock costs two scripts, Lock and Unlock. A hand-over to another process costs
//     two, however many wait, and one within a process none. Waiting costs one script a
//     second for each process and lock.
//   - No call holds its caller longer than its context lives (Unlock: a tenth of a
//     second more), whatever Redis does and whatever the client's options are.
//   - All times are the server's: the clocks of clients do not matter. Setting a client's
//     clock while it holds a lock can end its lease early, never late.
//
// # What it does not promise
//
//   - It is a lease. A process that is paused after its last look at the lease can go
//     on when another holds the lock; no lock can prevent that. Only the protected
//     resource can, by refusing a fence that is older than one it has seen; see below.
//   - Redis replicates after it has answered: a failover can forget a lock that was
//     granted, and grant it again. Options.Replicas makes that less likely, not
//     impossible. The first holder learns it with its next renewal; if it unlocks before,
//     and another has been granted the lock by then, Unlock may return nil. A restart without persistence forgets all locks; holders learn it
//     when the connection is back.
//   - A fence may repeat if Redis loses a lock's record and its clock was set back.
//     Redis keeps the record for 10 minutes beyond the lease; if its clock is set back
//     by up to a day, it keeps the record until the clock is past the fence again.
//   - A server's clock that jumps forward shortens leases by as much.
//   - Do not keep locks in a Redis that evicts keys (maxmemory-policy other than
//     noeviction), such as a cache's: an evicted lock is lost.
//   - Unlock after the transaction's commit. After an Unlock before the commit, the next
//     holder may read the old rows.
//   - The order of the queue is that of arrival at Redis, by process: a process's
//     waiters have one place, and go to the end of the queue after each turn.
//     Options.StrictFIFO gives each its own.
//   - An Unlock that hands the lock on within its process does not call Redis, so it does not
//     hear that Redis has lost the lock within the last 50 ms. The next holder learns of it.
//   - LockAll takes its locks at one moment if all are free. Otherwise it takes them one by
//     one, in an order that is the same for all callers: its caller gets all or none, but
//     holds the first while it waits for the others.
//   - A holder that lives but is stuck keeps the lock, unless Options.MaxHold is set.
//   - To elect a leader that moves money, use a system with consensus, such as etcd or
//     ZooKeeper, or the database itself. To count something down, use one conditional
//     update instead of a lock.
//   - A call to a third party, such as a mail or a payment, cannot be fenced: send an
//     idempotency key.
//
// # Fences
//
// The fence is a number that grows with every lease. Write it with the protected rows
// and refuse an older one, in the same statement:
//
//	UPDATE account SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2
//
// If no row was changed, the lease was lost and a later holder has written. See the
// example of [Lease.Fence].
//
// # Errors
//
// All errors match one or more of the package's by errors.Is. The error of a call
// whose context has ended matches the context's error too.
package lock

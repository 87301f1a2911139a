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
//   - A lease outlives its length only by the life of its process: the lock of one
//     that dies is free after the rest of its lease at the latest.
//   - A later lease has a larger fence: while Redis remembers the lock, whatever its
//     clock does, and also when it has lost its memory, if its clock is past the last
//     fence.
//   - Unlock frees a lock of its own lease and never that of a later one, and tells
//     when the lease was lost. It works with a context that has ended.
//   - Every operation may be repeated by the client when a reply was lost: nothing is
//     taken twice, nothing is lost that was not, and what was granted to a caller who
//     had left is given back at once.
//   - Who waits is served: first come, first served among processes, and within one.
//     A lost wake-up costs a second at most. A process that dies while it waits costs
//     the others two seconds once, however many of its goroutines waited.
//   - A free lock costs two scripts, Lock and Unlock. A hand-over costs two however
//     many wait. Waiting costs one script a second for each process and lock.
//   - No call holds its caller longer than its context lives (Unlock: a tenth of a
//     second more), whatever Redis does and the client's options are.
//   - Time is the server's: what clock a client has does not matter. One that is set
//     while it holds a lock can end its lease early, never late.
//
// # What it does not promise
//
//   - It is a lease. A process that is paused after its last look at the lease can go
//     on when another holds the lock; no lock can prevent that. Only what the lock
//     protects can, by refusing a fence that is older than one it has seen; see below.
//   - Redis replicates behind its answer: a failover can forget a lock that was
//     granted, and grant it again. Options.Replicas makes that less likely, not
//     impossible. A restart without persistence forgets all locks; holders learn it
//     when the connection is back.
//   - A fence may come again if Redis loses a lock's record and its clock was set
//     back. It keeps the record for 10 minutes beyond the lease, and when its clock
//     is set back by up to a day until that is past the fence again.
//   - A server's clock that jumps forward shortens leases by as much.
//   - Do not keep locks in a Redis that evicts keys (maxmemory-policy other than
//     noeviction), such as a cache's: an evicted lock is lost.
//   - Unlock after the transaction's commit, not before it, or the next holder reads
//     what is about to change.
//   - The order of the queue is that of arrival at Redis, by process: a process's
//     waiters have one place, and go to the end of the queue after each turn.
//     Options.StrictFIFO gives each its own.
//   - LockAll takes its locks one by one, in an order that is the same for all. It is
//     all or none for its caller, not one moment for everybody.
//   - A holder that lives but is stuck keeps the lock, unless Options.MaxHold is set.
//   - For the election of a leader that moves money use something that agrees, such
//     as etcd, ZooKeeper or the database itself. To count something down, use one
//     conditional update instead of a lock.
//   - The effect of a call to a third party, a mail or a payment, cannot be fenced:
//     send an idempotency key.
//
// # Fences
//
// The fence is a number that grows with every lease. Write it with what the lock
// protects and refuse an older one, in the same statement:
//
//	UPDATE account SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2
//
// If no row was changed, the lease was lost and a later holder has written. See the
// example of [Lease.Fence].
//
// # Errors
//
// All errors match one or more of the package's by errors.Is. One that ended with a
// context matches that context's error too.
package lock

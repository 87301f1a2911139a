// Package lock implements distributed locks on Redis: leases that are renewed while
// their holder lives, a queue that wakes one waiter at a time, and a fence for every
// lease.
//
//	locker, err := lock.New(rdb, lock.Options{})
//	defer locker.Close()
//	err = locker.Do(ctx, "coupon:66", func(ctx context.Context, lease *lock.Lease) error {
//		return claim(ctx, lease.Fence())
//	})
//
// It works with Redis 6.2 or Valkey and newer, standalone, behind Sentinel and as
// a Cluster, and without Redis within one process.
//
// # Guarantees
//
//   - A lock has one holder at a time, as long as Redis keeps its data and its clock runs
//     forward evenly. The context of a lease ends before Redis can grant the lock to another
//     holder, even if Redis does not reply or the machine was suspended.
//   - When a process dies, its locks are free when their leases end, after at most
//     Options.Lease.
//   - A later lease of a lock has a larger fence (of readers and permits: [Lease.Fence]).
//     While Redis remembers the lock, this holds whatever its clock does. After Redis has lost
//     its data, it holds if its clock is past the last fence.
//   - Unlock releases the lock of its own lease, never the lock of a later lease, and
//     reports a lease that was lost. It works with a context that has ended.
//   - Every operation may be repeated after its reply was lost. A lock granted to a caller
//     that no longer waits is released at once.
//   - Waiting processes are served in order of arrival, and so are the waiters of one
//     process. A process that has a mutex may first pass it on among 16 of its own waiters,
//     for 50 ms (Options.StrictFIFO). A lost wake-up delays a waiter by 1 s at most. A process
//     that dies while it waits delays the others once, by 2 s, however many of its goroutines
//     waited; with StrictFIFO, if at most a thousand did.
//   - A free lock costs two scripts, Lock and Unlock. A hand-off to another process costs
//     two, however many wait, and a hand-off within a process none. A waiting process runs
//     one script a second for each lock.
//   - Every call returns when its context ends (Unlock: at most 100 ms later), whatever Redis
//     does and whatever the client's options are.
//   - All times are measured by the server's clock: the clients' clocks do not matter. Setting
//     a client's clock while it holds a lock can end its lease early, never late.
//
// # Limitations
//
//   - A process that is paused just after it checked its lease can go on working when
//     another holds the lock; no lock can prevent that. Only the protected resource can, by
//     refusing a fence that is lower than one it has seen; see below.
//   - Redis replicates after it has replied: a failover can forget a granted lock, and grant
//     it again. Options.Replicas makes that less likely, not impossible. The first holder
//     notices at its next renewal; if it unlocks before, and the lock has been granted to
//     another by then, Unlock may return nil. A restart without persistence forgets all
//     locks; holders notice when the connection is back.
//   - A fence may repeat if Redis loses a lock's record and its clock was set back.
//     Redis keeps the record for 10 minutes beyond the lease; if its clock is set back
//     by up to a day, it keeps the record until the clock is past the fence again.
//   - A server's clock that jumps forward shortens leases by as much.
//   - Do not keep locks in a Redis that evicts keys (maxmemory-policy other than
//     noeviction), such as a cache's: an evicted lock is lost.
//   - Unlock after the transaction's commit. After an Unlock before the commit, the next
//     holder may read the old rows.
//   - The queue is in order of arrival at Redis, with one place for each process: after each
//     turn the waiters of a process go to the end of the queue together.
//     Options.StrictFIFO gives each waiter a place of its own.
//   - An Unlock that passes the lock on within its process does not call Redis, so it does
//     not notice that Redis lost the lock within the last 50 ms. The next holder does.
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
// # Without Redis
//
// With an untyped nil client, New keeps the locks in this process: for unit tests, for
// development, and for a service that runs once. Each kind of lock works as it does over Redis,
// with the same errors, queues, fences, tokens and hooks.
//
//   - Lockers with the same Options.Prefix share their locks, wherever in the process New made
//     them, as Lockers over one Redis do: two components of a service exclude each other.
//     Tests that must not see each other's locks have a Prefix each, such as t.Name(), also if
//     they run one after the other: the work of Once stays done. Tests in bubbles of
//     testing/synctest need that, since a bubble has a time of its own and must not wake
//     a goroutine of another.
//   - Other processes have locks of their own, with the same names.
//   - A renewal always succeeds, so a lease ends only by Unlock, Close, ForceUnlock, NoRenewal,
//     MaxHold or the ttl of a Token, or if the process is paused for longer than
//     Options.Lease: in a debugger, or while the machine is suspended. Others get the lock then,
//     as they do over Redis.
//   - While the process lives, a later lease of a lock has a larger fence, whatever the clock
//     does. In the next process this holds if the clock is past the last fence.
//   - When the process ends, its locks, its tokens and the work of Once are forgotten.
//   - Options.Replicas and Options.Fsync are refused. ErrUnavailable, ErrNotReplicated and
//     ErrConflict do not occur.
//   - A lock that is not in use takes some 400 bytes for a minute, and until other locks are used.
//
// # Fences
//
// The fence is a number that grows with every lease. Raise it in the protected row before
// you read the row, in the same transaction, and refuse a lower one in that statement:
//
//	UPDATE account SET fence = $1 WHERE id = $2 AND fence <= $1 RETURNING balance
//
// If no row was changed, the lease was lost and a later holder has been here. See the
// example of [Lease.Fence]. A fence that is only written at the end comes too late: a paused
// holder can still write between the next holder's read and its write.
//
// # Errors
//
// Every error matches, by errors.Is, one or more of the errors that this package declares.
// The error of a call whose context has ended also matches the context's error.
package lock

// Package redlock takes locks on a majority of independent Redis servers (the Redlock
// algorithm, with fences), so that a minority of them may fail or forget. It is
// experimental.
//
//	quorum, err := redlock.New(nodes, lock.Options{})
//	defer quorum.Close()
//	lease, err := quorum.Lock(ctx, "ledger")
//	defer lease.Unlock(ctx)
//
// A lock of a [Quorum] is a lock of package lock on each server that grants it. It is held
// as long as the leases on a majority of the servers are held; the other servers join when
// they can. The guarantees of package lock hold for each of these leases: it ends here before
// its server can grant the lock to another, and a lock granted to a caller that no longer
// waits is released.
//
// There is no queue: a caller that finds a lock taken tries again after a random time.
//
// # Fences
//
// Fences are made in two phases: the Quorum takes the highest fence of the majority that
// granted the lock and writes it to each of these servers, and a server counts for the lease
// only when it knows that fence. Any two majorities share a server. There the earlier holder
// wrote its fence before the later one was granted the lock, so the later fence is higher,
// whatever the clocks do.
//
// # Servers that forget
//
// A server forgets the lock when it restarts with nothing on disk, or when its keys are
// flushed or evicted. A lease that is still held on a majority takes the lock there again,
// and does the same on a server that did not reply when the lock was taken, or for too
// long since. It tries until it has the lock there or ends. So servers may restart one
// after another while the holder keeps the lock. Four rules make this safe:
//
//   - Only a lease that is held takes the lock on more servers. Once a lease has lost its
//     majority it is lost, whatever a server grants it later; such a grant is released.
//   - The lease takes the lock from nobody: where another has it, the other keeps it.
//   - The server counts only if a majority has confirmed the lease since this server granted
//     the lock, so that a majority that was lost in between does not go unnoticed.
//   - The server gets the lease's fence before it counts. So whenever the lease ends, a
//     majority knows its fence, and the next fence is higher.
//
// Two leases that are held at the same time would share a server. A server has one holder, so
// one of the two would rely on a lock that this server has forgotten and granted to the
// other. Taking the lock again does not add such a case, since the server has really granted
// it. It makes two holders less likely: another gets a majority only of servers on which the
// lease is not held, or which have forgotten it.
//
// With lock.Options.NoRenewal a lease does not take the lock again on a server that has lost
// it, and with MaxHold only if a whole lease is left. Neither makes a lease longer.
//
// # Limitations
//
//   - A holder notices that a server has forgotten the lock when the connection to it is back,
//     or at the next renewal, a third of the lease later. Until then another can be granted
//     the lock there. If so many servers forget within that time that, together with the
//     servers on which the lease is not held, they are a majority, there can be two holders
//     until the first of them notices. For a lease on all servers that takes a majority; for a
//     lease on a bare majority of an odd number, one server. Servers that keep all writes on
//     disk (appendfsync always) do not forget.
//   - If servers forget between two leases, the later fence may be lower, unless the clocks
//     are past the earlier one.
//   - Waiting callers are served in random order.
package redlock

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
// as long as the leases on a majority of the servers stand. What package lock promises of a
// lease holds for each of them: it ends here before its server can give the lock away, and
// a lock that was granted to a caller who has left is given back.
//
// There is no queue: a caller that finds a lock taken tries again after a random time.
//
// # Fences
//
// Fences are made in two phases: the highest fence of the majority that granted the lock is
// put on each of these servers, and the lock counts only if a majority took it. Any two
// majorities share a server. There the earlier holder wrote its fence before the later one
// was granted the lock, so the later fence is higher, whatever the clocks do.
//
// # What it does not promise
//
//   - A majority of the servers that forget within the life of one lease can give the lock
//     to another. Servers that keep what they know on disk (appendfsync always) do not
//     forget.
//   - A server that joins the majority only after the lock was taken knows the lock, but not
//     its fence.
//   - The order of callers is that of chance.
package redlock

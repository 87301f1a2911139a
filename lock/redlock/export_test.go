package redlock

// Servers is on how many servers the lease stands.
func (l *Lease) Servers() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.members {
		if l.members[i].stands() {
			n++
		}
	}
	return n
}

// Renewals is how many renewals the servers have confirmed.
func (q *Quorum) Renewals() (n uint64) {
	for _, node := range q.nodes {
		n += node.Stats().Renewals
	}
	return n
}

// Live is of how many servers messages arrive.
func (q *Quorum) Live() (n int) {
	for _, node := range q.nodes {
		if node.Stats().Live {
			n++
		}
	}
	return n
}

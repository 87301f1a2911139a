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

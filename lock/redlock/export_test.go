package redlock

// Servers is on how many servers the lease stands or has stood.
func (l *Lease) Servers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.parts)
}

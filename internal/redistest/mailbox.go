package redistest

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// forever is the patience of a child: it lives as long as its parent.
const forever time.Duration = 1<<63 - 1

// A mailbox keeps lines until somebody takes them, in any order.
type mailbox struct {
	mu     sync.Mutex
	lines  []string      // guarded by mu
	change chan struct{} // guarded by mu; closed, and made anew, when lines come
	eof    bool          // guarded by mu
}

func newMailbox() *mailbox { return &mailbox{change: make(chan struct{})} }

// fill puts every line of r into the mailbox until r ends.
func (m *mailbox) fill(r io.Reader) {
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, 16<<20)
	for scan.Scan() {
		m.put(func() { m.lines = append(m.lines, scan.Text()) })
	}
	m.put(func() { m.eof = true })
}

func (m *mailbox) put(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	close(m.change)
	m.change = make(chan struct{})
}

// take removes and returns the first line that is wanted, and waits for it. The
// error is io.EOF when there will be none.
func (m *mailbox) take(wanted func(line string) bool, patience time.Duration) (string, error) {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		m.mu.Lock()
		for i, line := range m.lines {
			if wanted(line) {
				m.remove(i)
				m.mu.Unlock()
				return line, nil
			}
		}
		change, eof := m.change, m.eof
		m.mu.Unlock()
		if eof {
			return "", io.EOF
		}
		select {
		case <-change:
		case <-limit.C:
			return "", fmt.Errorf("nothing within %v", patience)
		}
	}
}

func (m *mailbox) remove(i int) {
	if i == 0 { // by far the most frequent; to move all others would be quadratic
		m.lines = m.lines[1:]
		return
	}
	m.lines = slices.Delete(m.lines, i, i+1)
}

func (m *mailbox) rest() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.lines)
}

package lock

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// force is ForceUnlock. It reports false if nobody holds the lock.
func (m *model) force() bool {
	if m.owner == "" || m.ended || strings.HasPrefix(m.owner, "g:") {
		return false
	}
	if !m.noRaise {
		m.fence += spare + 1
	}
	m.born = m.fence
	m.forced = append(m.forced, m.owner)
	m.owner, m.released = "", m.owner
	m.advance("")
	return true
}

// force takes the step, and returns what is wrong with it. The holder learns of it at once
// here: what one does that does not is what a late one does.
func (w *world) force() (taken bool, wrong string) {
	before := w.m.owner
	if !w.m.force() {
		return false, ""
	}
	for i := range w.clients {
		if c := &w.clients[i]; c.holds && c.owner == before {
			c.holds, c.late = false, true
			if c.granted+c.spare >= w.m.born {
				return true, fmt.Sprintf("whoever has a fence below %d has lost the lock, and the holder may get %d", w.m.born, c.granted+c.spare)
			}
		}
	}
	if w.m.owner == before {
		return true, "a forced lock is still its holder's"
	}
	return true, ""
}

// force takes the real lock from its holder, and once more as a client does that got no
// reply.
func (y *way) force(ctx context.Context, holder string) string {
	operator := y.store(0)
	what, fence, err := operator.force(ctx, &y.t, 0)
	if err != nil || what != answerHeld || fence > y.last || fence+spare < y.last {
		return fmt.Sprintf("asked for the fence, it says %s %d, %v", what, fence, err)
	}
	for n := range 2 {
		if n > 0 && !y.again() {
			break
		}
		if what, _, err := operator.force(ctx, &y.t, fence); err != nil || what != answerForced {
			return fmt.Sprintf("it says %s, %v", what, err)
		}
	}
	for p := range y.grants {
		if y.grants[p].owner == holder {
			y.grants[p].ends = 1
		}
	}
	y.since = y.born(ctx, &y.t)
	if y.since <= fence+maxPassed {
		return fmt.Sprintf("the first fence is %d after %d", y.since, fence)
	}
	return ""
}

// granted notes that an owner has the lock: what was before does not matter any more.
func (m *model) granted(me string) {
	m.forced = slices.DeleteFunc(m.forced, func(owner string) bool { return owner == me })
}

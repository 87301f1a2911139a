//go:build levee_failpoint

package failpoint

import "sync/atomic"

var hook atomic.Pointer[func(name string)]

// At calls the function passed to Set, if any, with the name of the point.
func At(name string) {
	if run := hook.Load(); run != nil {
		(*run)(name)
	}
}

// Set makes At call run. With a nil run At does nothing.
func Set(run func(name string)) {
	if run == nil {
		hook.Store(nil)
		return
	}
	hook.Store(&run)
}

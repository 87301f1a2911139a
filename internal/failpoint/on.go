//go:build levee_failpoint

package failpoint

import "sync/atomic"

var hook atomic.Pointer[func(name string)]

// At calls the function that the test has set.
func At(name string) {
	if run := hook.Load(); run != nil {
		(*run)(name)
	}
}

// Set makes At call run, or nothing if run is nil.
func Set(run func(name string)) {
	if run == nil {
		hook.Store(nil)
		return
	}
	hook.Store(&run)
}

//go:build levee_failpoint

package failpoint

import "sync/atomic"

var hook atomic.Pointer[func(name string)]

// At runs the hook that the test has set.
func At(name string) {
	if run := hook.Load(); run != nil {
		(*run)(name)
	}
}

// Set makes At call run, nil for nothing.
func Set(run func(name string)) {
	if run == nil {
		hook.Store(nil)
		return
	}
	hook.Store(&run)
}

// Each of these takes a safeguard out, so that a test can show that it sees the
// difference. They are set before anything runs.
var (
	PlainCommit bool
	KeepRefused bool
	JoinAny     bool
	SealEarly   bool
)

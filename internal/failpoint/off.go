//go:build !levee_failpoint

// Package failpoint lets a test run a function at named points of the code, such as
// one that pauses there or lets a writer come in between two steps. It also has
// switches that take safeguards out; edits in a copy of the code, see
// internal/mutant, are to replace them.
//
// All of this works in builds with the tag levee_failpoint only. In all others At does
// nothing and the switches are constants, so the compiler removes them.
package failpoint

// At names a point.
func At(string) {}

// Each of these takes a safeguard out, so that a test can show that it is needed.
const (
	PlainCommit = false // publish without asking for the lease, invalidate without voiding it
	KeepRefused = false // answer all callers with a value that Redis refused to publish
	JoinAny     = false // give a flight's result to all that joined, however late
	SealEarly   = false // let nobody join from just before the publication on
)

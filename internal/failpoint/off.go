//go:build !levee_failpoint

// Package failpoint lets tests stop the code at the moments between which others
// may act, and take its safeguards out one at a time.
//
// It does so only in builds with the tag levee_failpoint. In every other build all of
// it is constant and compiled away.
package failpoint

// At marks a moment. In a test build it runs the hook that the test has set.
func At(string) {}

// Each of these takes a safeguard out, so that a test can show that it sees the
// difference.
const (
	PlainCommit = false // publish without asking for the lease, invalidate without voiding it
	KeepRefused = false // answer everybody with a value whose publication was refused
	JoinAny     = false // give a flight's result to whoever joined, at whatever moment
	SealEarly   = false // let nobody join from just before the publication on
)

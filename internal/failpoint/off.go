//go:build !levee_failpoint

// Package failpoint lets a test run a function at named points of the code, such as
// one that pauses there or lets a writer come in between two steps. To take a
// safeguard out of the code, see internal/mutant.
//
// Points work only in builds with the tag levee_failpoint. In all others At does
// nothing, and the compiler removes it.
package failpoint

// At marks a point of the code. In this build it does nothing.
func At(string) {}

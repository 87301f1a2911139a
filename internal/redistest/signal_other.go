//go:build !unix

package redistest

import "syscall"

// A process cannot be frozen here: os.Process.Signal returns an error for both.
const (
	sigStop = syscall.Signal(-1)
	sigCont = syscall.Signal(-2)
)

//go:build unix

package cost_test

import (
	"syscall"
	"time"
)

// processorTime is what the process has used so far. Unlike the time of day it leaves out
// how long the process waited for a processor that others had.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

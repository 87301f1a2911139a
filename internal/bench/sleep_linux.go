package main

import (
	"syscall"
	"time"
)

// sleepUntil asks the system to wake this thread. time.Sleep of less than a millisecond may take one in a process
// that has nothing else to do.
func sleepUntil(t time.Time) {
	for {
		left := time.Until(t)
		if left <= 0 {
			return
		}
		ts := syscall.NsecToTimespec(int64(left))
		_ = syscall.Nanosleep(&ts, nil) // a signal may end it early
	}
}

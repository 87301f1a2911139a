package race

import "os"

// QuickExit is GORACE for child processes: what it is here, and 10 ms in place of the second for which
// a process with the race detector sleeps before it exits.
func QuickExit() string { return os.Getenv("GORACE") + " atexit_sleep_ms=10" }

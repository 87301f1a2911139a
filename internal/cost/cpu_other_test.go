//go:build !unix

package cost_test

import "time"

// began is when this process did.
var began = time.Now()

// processorTime is the time of day here, so that what it measures is too long on a busy machine.
func processorTime() time.Duration { return time.Since(began) }

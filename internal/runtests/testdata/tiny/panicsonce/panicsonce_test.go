package panicsonce

import (
	"os"
	"testing"
)

func TestPasses(*testing.T) {}

// TestPanicsOnce panics when it cannot find the file it leaves.
func TestPanicsOnce(*testing.T) {
	left := os.Getenv("TINY_DIR") + "/panicsonce"
	if _, err := os.Stat(left); err != nil {
		os.WriteFile(left, nil, 0o600)
		panic("as it does the first time")
	}
}

func TestComesAfterThePanic(*testing.T) {}

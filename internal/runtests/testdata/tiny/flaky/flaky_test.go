package flaky

import (
	"os"
	"testing"
)

// TestFlaky fails the first time, when it cannot find the file it leaves.
func TestFlaky(t *testing.T) {
	left := os.Getenv("TINY_DIR") + "/flaky"
	if _, err := os.Stat(left); err != nil {
		os.WriteFile(left, nil, 0o600)
		t.Error("as it does the first time")
	}
}

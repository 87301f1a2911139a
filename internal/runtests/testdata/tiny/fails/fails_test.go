package fails

import (
	"os"
	"testing"
)

func TestFails(t *testing.T) {
	os.Stderr.WriteString("redis: 2026/11/22 08:00:00 pool.go:1: failed to dial\n")
	t.Run("passing", func(t *testing.T) { t.Log("nobody needs to read this") })
	t.Run("failing", func(t *testing.T) { t.Error("as it always does") })
}

func TestPasses(*testing.T) {}

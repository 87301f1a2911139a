package passes

import (
	"os"
	"testing"
)

func TestPasses(t *testing.T) {
	os.Stderr.WriteString("redis: 2026/11/22 08:00:00 pool.go:1: failed to dial\n")
	t.Log("nobody needs to read this")
}

func TestSkips(t *testing.T) { t.Skip("not today") }

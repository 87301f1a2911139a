package flaky

import (
	"os"
	"testing"
)

func TestFlaky(t *testing.T) {
	if first("flaky") {
		t.Error("as it does the first time")
	}
}

// A test that skips when it runs again has not passed.
func TestFailsThenSkips(t *testing.T) {
	if first("skips") {
		t.Fatal("as it does the first time")
	}
	t.Skip("as it does later")
}

// first says whether the test runs for the first time, by a file that it leaves then.
func first(name string) bool {
	left := os.Getenv("TINY_DIR") + "/" + name
	_, err := os.Stat(left)
	os.WriteFile(left, nil, 0o600)
	return err != nil
}

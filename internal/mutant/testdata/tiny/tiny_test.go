package tiny

import (
	"os"
	"testing"
)

func TestDivisionByZeroIsAnError(t *testing.T) {
	if _, err := os.Stat("tiny.go"); err != nil {
		t.Fatalf("want to run in the directory of the package, got %v", err)
	}
	if _, err := divide(1, 0); err == nil {
		t.Error(os.Getenv("TINY_COMPLAINT"))
	}
}

func TestGreeting(t *testing.T) {
	if greeting != "hello\n" {
		t.Errorf("want hello, got %q", greeting)
	}
}

package panics

import "testing"

func TestPasses(*testing.T) {}

func TestPanics(*testing.T) {
	done := make(chan bool)
	go func() { panic("as it always does") }()
	<-done
}

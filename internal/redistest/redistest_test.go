package redistest

import (
	"testing"
	"time"
)

func TestLongTestsAreSwitchedByOneVariable(t *testing.T) {
	for value, want := range map[string]struct {
		size int
		lap  time.Duration
	}{"": {10, 0}, "1": {1000, time.Minute}, "90s": {1000, 90 * time.Second}} {
		t.Setenv("LEVEE_LONG", value)
		if got := Pick(10, 1000); got != want.size {
			t.Errorf("LEVEE_LONG=%s picks %d", value, got)
		}
		ran := false
		t.Run("long "+value, func(t *testing.T) {
			if got := Long(t); got != want.lap {
				t.Errorf("LEVEE_LONG=%s lasts %v", value, got)
			}
			ran = true
		})
		if ran != (value != "") {
			t.Errorf("LEVEE_LONG=%s, ran: %v", value, ran)
		}
	}
}

func TestRoundsAreCountedOrTimed(t *testing.T) {
	for value, want := range map[string]int{"1": 7, "1ns": 1} {
		t.Setenv("LEVEE_LONG", value)
		n := 0
		for i := range Rounds(t, 7) {
			if i != n {
				t.Errorf("LEVEE_LONG=%s: round %d is number %d", value, n, i)
			}
			n++
		}
		if n != want {
			t.Errorf("LEVEE_LONG=%s: %d rounds, want %d", value, n, want)
		}
	}
}

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

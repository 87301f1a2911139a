package doorkeeper

import (
	"strconv"
	"testing"
	"time"
)

func TestTheDoorkeeperAdmitsTheSecondMissWithinAWindow(t *testing.T) {
	d := New(time.Minute)
	now := time.Now()
	if d.Admits("a", now) {
		t.Error("the first miss is admitted")
	}
	if !d.Admits("a", now.Add(59*time.Second)) {
		t.Error("the second within a window is not")
	}
	d.Admits("b", now)
	d.Admits("c", now.Add(61*time.Second)) // b is in the old half now
	if !d.Admits("b", now.Add(119*time.Second)) {
		t.Error("the old half is not looked at")
	}
	d.Admits("d", now)
	if d.Admits("d", now.Add(time.Hour)) {
		t.Error("a miss of an hour ago counts")
	}
}

// However many ids come, few are taken for known: the halves have to turn when
// they are full, and not only when it is time.
func TestTheDoorkeeperStaysUsefulInAFlood(t *testing.T) {
	d := New(time.Minute)
	now := time.Now()
	admitted := 0
	const flood = 1_000_000
	for i := range flood {
		if d.Admits(strconv.Itoa(i), now) {
			admitted++
		}
	}
	if share := float64(admitted) / flood; share > 0.1 {
		t.Errorf("%.0f %% of a flood of distinct ids is admitted", 100*share)
	}
	t.Logf("%d of %d admitted", admitted, flood)
}

package main

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/levee-go/levee/examples/internal/stage"
	"github.com/levee-go/levee/examples/internal/stagetest"
)

// smallScale has a commit that takes much longer than to turn a click down. With a lock for each user the first click of every user is
// served; with one for all users nearly all that come during a commit are turned down, also on a busy machine.
var smallScale = scale{Users: 12, Draws: 2, Clicks: 10, Customers: 8, Work: 5 * time.Millisecond, Commit: time.Second}

// naiveScale is large enough for every naive recipe to let users draw too often, also under the race detector.
var naiveScale = scale{Users: 12, Draws: 2, Clicks: 20, Customers: 8, Work: 5 * time.Millisecond, Commit: 30 * time.Millisecond}

func TestMain(m *testing.M) {
	stage.ChildMain(play(smallScale))
	goleak.VerifyTestMain(m)
}

func TestNobodyDrawsMoreOftenThanHeMay(t *testing.T) {
	results := stagetest.Check(t, play(smallScale), naiveScale)
	if len(results) != len(recipes) {
		return
	}
	one, each := results[3].Tally, results[4].Tally
	if each.Served <= one.Served {
		t.Errorf("%d draws with a lock for each user, %d with one for all", each.Served, one.Served)
	}
}

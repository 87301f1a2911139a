package main

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/levee-go/levee/examples/internal/stage"
	"github.com/levee-go/levee/examples/internal/stagetest"
)

// smallScale is large enough for every recipe to show what it is there for, also under the race detector.
var smallScale = scale{Users: 20, Draws: 2, Clicks: 20, Customers: 8, Work: 5 * time.Millisecond, Commit: 30 * time.Millisecond}

func TestMain(m *testing.M) {
	stage.ChildMain(play(smallScale))
	goleak.VerifyTestMain(m)
}

func TestNobodyDrawsMoreOftenThanHeMay(t *testing.T) {
	results := stagetest.Check(t, play(smallScale))
	if len(results) != len(recipes) {
		return
	}
	one, each := results[3].Tally, results[4].Tally
	if each.Served <= one.Served {
		t.Errorf("%d draws with a lock for each user, %d with one for all", each.Served, one.Served)
	}
}

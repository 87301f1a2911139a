package main

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/levee-go/levee/examples/internal/stage"
	"github.com/levee-go/levee/examples/internal/stagetest"
)

// smallScale is large enough for every recipe to show what it is there for, also under the race detector.
var smallScale = scale{
	Coupons: 20, Users: 40, Customers: 8, Work: 2 * time.Millisecond,
	Slow: 2300 * time.Millisecond, SlowEvery: 100, Lease: 2 * time.Second, // no machine is too busy to renew that in time
	Patience: 2 * time.Second,
}

// naiveScale is for locks that are not renewed: a slow claim goes on for long after its lease.
func naiveScale() scale {
	s := smallScale
	s.Slow, s.Lease = 1500*time.Millisecond, 300*time.Millisecond
	return s
}

func TestMain(m *testing.M) {
	stage.ChildMain(play(smallScale))
	goleak.VerifyTestMain(m)
}

func TestEveryUserGetsOneCouponAtTheMostAndAllAreGiven(t *testing.T) {
	stagetest.Check(t, play(smallScale), naiveScale())
}

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
	Stock: 40, Segments: 5, Buyers: 40, Customers: 12, Work: 5 * time.Millisecond,
	Slow: 5300 * time.Millisecond, Lease: 5 * time.Second, // of two seconds a machine at a load of 18 has not renewed one in time
}

// naiveScale is for locks that are not renewed: a slow sale goes on for long after its lease.
func naiveScale() scale {
	s := smallScale
	s.Slow, s.Lease = 1500*time.Millisecond, 300*time.Millisecond
	return s
}

func TestMain(m *testing.M) {
	stage.ChildMain(play(smallScale))
	goleak.VerifyTestMain(m)
}

func TestAllIsSoldAndNoMore(t *testing.T) {
	stagetest.Check(t, play(smallScale), naiveScale())
}

package main

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/levee-go/levee/examples/internal/stage"
	"github.com/levee-go/levee/examples/internal/stagetest"
)

// smallScale is large enough for every recipe to show what it is there for, also under the race detector.
var smallScale = scale{Reminders: 8, Poll: 10 * time.Millisecond, Work: 100 * time.Millisecond, Patience: 5 * time.Second, Lease: 2 * time.Second}

// naiveScale ends soon: a reminder that is claimed by a dead process is never sent, however long the other one looks.
func naiveScale() scale {
	s := smallScale
	s.Patience = 2 * time.Second
	return s
}

func TestMain(m *testing.M) {
	stage.ChildMain(play(smallScale))
	goleak.VerifyTestMain(m)
}

func TestEachReminderIsSentOnce(t *testing.T) {
	small := play(smallScale)
	for _, r := range stagetest.Check(t, small, naiveScale()) {
		t.Log(r.Recipe, r.Cells, r.Wrong)
	}
}

package wait_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

func TestNoTaskBeginsAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tasks wait.Tasks
		began := time.Now()
		tasks.Go(func() { time.Sleep(time.Second) })
		if tasks.CloseWithin(time.Millisecond); time.Since(began) != time.Millisecond {
			t.Errorf("CloseWithin took %v, want its limit", time.Since(began))
		}
		if tasks.Begin() {
			t.Error("a task began after Close")
		}
		tasks.Go(func() { t.Error("a task ran after Close") })
		if <-tasks.Close(); time.Since(began) != time.Second {
			t.Errorf("Close was over after %v, want the end of the task", time.Since(began))
		}
	})
}

func TestTasksThatAreNoneEndAtOnce(t *testing.T) {
	var tasks wait.Tasks
	tasks.Begin()
	tasks.End()
	<-tasks.Close()
}

package linear

import (
	"errors"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

// A fleet is the processes of one recording.
type fleet struct {
	children []*redistest.ChildProcess
	paths    []string // where each writes its history
}

// launch starts the processes of a role, which begin to work together once all of
// them are ready. Args are for the role.
func launch(t *testing.T, role, addr, board string, length time.Duration, args ...string) (f fleet) {
	t.Helper()
	for i := range processes {
		path := filepath.Join(t.TempDir(), "history")
		f.paths = append(f.paths, path)
		f.children = append(f.children, redistest.Child(t, role,
			append([]string{addr, board, path, strconv.Itoa(i), length.String()}, args...)...))
	}
	for _, child := range f.children {
		child.Expect("ready")
	}
	begin := time.Now().Add(10 * time.Millisecond)
	for _, child := range f.children {
		child.Send("%d", begin.UnixNano())
	}
	return f
}

// history waits for the processes and returns what they did.
func (f fleet) history(t *testing.T) (history []op) {
	t.Helper()
	for i, child := range f.children {
		if err := child.Wait(); err != nil {
			t.Fatal(err)
		}
		history = append(history, readHistory(t, f.paths[i])...)
	}
	return history
}

// A task is what launch tells a process.
type task struct {
	addr, path string
	db         *board
	process    int
	length     time.Duration
	pace       pace     // of "client"
	args       []string // for the role
}

func readTask(args []string) (a task, err error) {
	a = task{addr: args[0], path: args[2], pace: realPace, args: args[5:]}
	if a.db, err = openBoard(args[1]); err != nil {
		return a, err
	}
	if a.process, err = strconv.Atoi(args[3]); err != nil {
		return a, err
	}
	a.length, err = time.ParseDuration(args[4])
	return a, err
}

// A worker works from begin on and returns what it did.
type worker func(begin time.Time) ([]op, error)

// work has the workers of a process work, and writes down what they did.
func (a task) work(p *redistest.Parent, workers []worker) error {
	p.Say("ready")
	begin, err := strconv.ParseInt(p.Next(), 10, 64)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	var mu sync.Mutex // guards history and failed
	var history []op
	var failed []error
	for _, one := range workers {
		running.Go(func() {
			did, err := one(time.Unix(0, begin))
			mu.Lock()
			defer mu.Unlock()
			history = append(history, did...)
			failed = append(failed, err)
		})
	}
	running.Wait()
	return errors.Join(append(failed, writeHistory(a.path, history))...)
}

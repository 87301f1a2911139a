//go:build levee_failpoint

package bloom

import (
	"context"
	"testing"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/redistest"
)

// at runs fn once, when the code comes to a point.
func at(t *testing.T, point string, fn func()) {
	t.Helper()
	failpoint.Set(func(name string) {
		if name == point {
			failpoint.Set(nil)
			fn()
		}
	})
	t.Cleanup(func() { failpoint.Set(nil) })
}

// held is a Rebuild without ids that waits for goOn in its scan.
func held(f *Filter) (goOn func() error) {
	reading, gate, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- f.Rebuild(context.Background(), func(func(string, error) bool) {
			close(reading)
			<-gate
		})
	}()
	<-reading
	return func() error {
		close(gate)
		return <-ended
	}
}

// Between an Add's look at the tables and its filling them one Rebuild ends and another
// begins, which finds the id in recent but not in the table that answers. Without a second
// look the id is lost with the switch.
func TestAnAddAcrossTwoRebuildsIsInTheSecond(t *testing.T) {
	for _, counting := range []bool{false, true} {
		f, err := New(Options{Capacity: 1000, Complete: true, Counting: counting})
		if err != nil {
			t.Fatal(err)
		}
		first, second := held(f), func() error { return nil }
		at(t, "fill", func() {
			if err := first(); err != nil {
				t.Error(err)
			}
			second = held(f)
		})
		if err := f.Add(t.Context(), "x"); err != nil {
			t.Error(err)
		}
		if err := second(); err != nil || !f.MayContain(t.Context(), "x") {
			t.Errorf("counting %v: x is denied, %v", counting, err)
		}
	}
}

// Between Ensure's look at the table and its note of what it held a whole Rebuild begins and ends,
// whose scan has not found the row. Without a second look the id is in neither table.
func TestAnEnsureAcrossARebuildIsInItsResult(t *testing.T) {
	f, err := New(Options{Capacity: 1000, Complete: true, Counting: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Add(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	f.impl.(*local).recent.drop() // it was added long ago
	at(t, "held", func() {
		if err := f.Rebuild(t.Context(), yielding(nil)); err != nil {
			t.Error(err)
		}
	})
	if err := f.Ensure(t.Context(), "x"); err != nil || !f.MayContain(t.Context(), "x") {
		t.Errorf("x is denied, %v", err)
	}
}

// A load that is about to install the old snapshot comes after the end of a Rebuild of the same
// process: that one's result answers on.
func TestALoadDoesNotReplaceTheResultOfARebuild(t *testing.T) {
	srv := redistest.Start(t)
	a, _ := opened(t, srv)
	if err := a.Rebuild(t.Context(), yielding(some(0, 100))); err != nil {
		t.Fatal(err)
	}
	loading, goOn := make(chan struct{}), make(chan struct{})
	at(t, "install", func() { close(loading); <-goOn })
	b, _ := opened(t, srv)
	<-loading
	if err := b.Rebuild(t.Context(), yielding(some(0, 200))); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	for range 2000 {
		if n := denied(b, some(100, 200)); n > 0 {
			t.Fatalf("%d ids denied", n)
		}
	}
}

// A load has read the log to its end when the same process invalidates the filter, which abstains at once.
func TestALoadDoesNotOutliveAnInvalidateOfItsProcess(t *testing.T) {
	f, s, rec, snap, _ := copied(t)
	at(t, "install", func() {
		if err := f.Invalidate(t.Context()); err != nil {
			t.Error(err)
		}
	})
	err := s.load(t.Context(), rec, snap)
	if n := denied(f, some(100, 200)); err == nil || n > 0 {
		t.Errorf("%v, of 100 rows %d are denied", err, n)
	}
}

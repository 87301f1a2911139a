package bloom_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
)

// ifOlder calls RebuildIfOlder, and fails the test unless it reads ids, or does not. It calls it again
// where a busy machine takes longer than a call to Redis may: the first may have succeeded then.
func ifOlder(t *testing.T, f *bloom.Filter, age time.Duration, want bool) {
	t.Helper()
	read := false
	ids := func(yield func(string, error) bool) {
		read = true
		numbered(0, 1000)(yield)
	}
	ran, err := f.RebuildIfOlder(t.Context(), age, ids)
	for end := time.Now().Add(20 * time.Second); errors.Is(err, bloom.ErrUnavailable) && time.Now().Before(end); ran = ran || read {
		ran, err = f.RebuildIfOlder(t.Context(), age, ids)
	}
	if err != nil || ran != want || read != want {
		t.Errorf("RebuildIfOlder(%v) is %v, %v, and has read the ids: %v; want %v", age, ran, err, read, want)
	}
	if missing(f, 0, 1000) > 0 || !f.Stats().Complete {
		t.Errorf("the filter does not answer: %+v", f.Stats())
	}
	answers(t, f)
}

// Processes that share a filter read the ids once in an age, whichever of them comes, one
// that has just started too. Without the look at the last Rebuild, each of them reads them.
func TestOneProcessOfAFleetRebuildsAnOldFilter(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	a, b := open(t, s.Client(t)), open(t, s.Client(t))
	ifOlder(t, a, time.Hour, true) // there was none
	ifOlder(t, a, time.Hour, false)
	ifOlder(t, b, time.Hour, false)
	ifOlder(t, open(t, s.Client(t)), time.Hour, false)

	if err := rdb.HIncrBy(t.Context(), names.Record(), "since", -time.Hour.Milliseconds()).Err(); err != nil {
		t.Fatal(err)
	}
	ifOlder(t, a, 2*time.Hour, false)
	ifOlder(t, b, time.Hour, true) // it is an hour old
	ifOlder(t, a, time.Hour, false)

	if err := rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	ifOlder(t, a, time.Hour, true) // Redis has lost it
	ifOlder(t, b, time.Hour, false)
	if err := a.Rebuild(t.Context(), numbered(0, 1000)); err != nil || a.Stats().Rebuilds != 3 {
		t.Errorf("Rebuild looks at no age: %v, %+v", err, a.Stats())
	}
}

// A process whose age is over while another one rebuilds waits for that one's result.
func TestARebuildOfAnOldFilterWaitsForTheOneUnderWay(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := open(t, s.Client(t)), open(t, s.Client(t))
	half, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() { ended <- a.Rebuild(context.Background(), paused(0, 1000, half, goOn)) }()
	<-half
	time.AfterFunc(300*time.Millisecond, func() { close(goOn) })
	ifOlder(t, b, time.Hour, false)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A Rebuild that fails is none: the next call reads the ids again.
func TestARebuildThatFailedMakesNoFilterYoung(t *testing.T) {
	t.Parallel()
	broken := iter.Seq2[string, error](func(yield func(string, error) bool) { yield("", io.ErrUnexpectedEOF) })
	fails := func(t *testing.T, f *bloom.Filter) {
		t.Helper()
		if ran, err := f.RebuildIfOlder(t.Context(), time.Hour, broken); ran || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %v, %v", ran, err)
		}
		ifOlder(t, f, time.Hour, true)
	}
	t.Run("shared", func(t *testing.T) { fails(t, open(t, redistest.Start(t).Client(t))) })
	t.Run("in the process", func(t *testing.T) {
		fails(t, newFilter(t, bloom.Options{Capacity: 1000, MaxTransaction: -1}))
	})
}

// A filter in the process is as old as its own last Rebuild.
func TestAnOldFilterInTheProcessIsRebuilt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilter(t, bloom.Options{Capacity: 1000, MaxTransaction: -1})
		ifOlder(t, f, time.Hour, true)
		time.Sleep(time.Hour - time.Second)
		ifOlder(t, f, time.Hour, false)
		time.Sleep(time.Second)
		ifOlder(t, f, time.Hour, true)
		ifOlder(t, f, time.Hour, false)
	})
}

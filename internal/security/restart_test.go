package security

import (
	"errors"
	"iter"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// The documented users beside the documented persistence.
//
// Defect: a server replays the transactions of its append-only file with the rights of the default user, and a
// script that writes twice is one. Where that user may do nothing, a restart loses the locks, and a filter
// denies what was added.
func TestWhatTheDocumentedUsersStoreSurvivesARestart(t *testing.T) {
	s := startGuarded(t, "--appendonly", "yes", "--appendfsync", "always")
	all := users(t)
	ctx, quiet := t.Context(), slog.New(slog.DiscardHandler)
	holder, err := lock.New(s.as(t, all["order-locks"])(), lock.Options{Lease: time.Minute, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if _, err := holder.Lock(ctx, "order:1"); err != nil {
		t.Fatal(err)
	}
	filter := func() *bloom.Filter {
		f, err := bloom.Open(ctx, s.as(t, all["product-filter"])(), bloom.Options{Name: "product", Capacity: 10_000, MaxTransaction: -1, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	f := filter()
	if err := f.Rebuild(ctx, ids(0, 100)); err != nil {
		t.Fatal(err)
	}
	if err := s.admin.BgRewriteAOF(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if _, err := holder.Lock(ctx, "order:2"); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		if err := f.Add(ctx, "added "+strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	_ = f.Close() // nobody adds again what the server loses
	s.Restart(t)

	other, err := lock.New(s.as(t, all["order-locks"])(), lock.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, name := range []string{"order:1", "order:2"} {
		if _, err := other.TryLock(ctx, name); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("%s, which is held, is given to another after a restart: %v", name, err)
		}
	}
	f = filter()
	redistest.Eventually(t, patience, "the filter answers", func() bool { return !f.Stats().Abstaining })
	denied := 0
	for i := range 300 {
		if !f.MayContain(ctx, "added "+strconv.Itoa(i)) {
			denied++
		}
	}
	if denied > 0 {
		t.Errorf("after a restart the filter denies %d of 300 ids", denied)
	}
}

func ids(from, to int) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for i := from; i < to && yield(strconv.Itoa(i), nil); i++ {
		}
	}
}

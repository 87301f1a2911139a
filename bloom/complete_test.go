package bloom_test

import (
	"context"
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
)

// Complete: nothing exists, and the filter need not be told so by a Rebuild.
func TestACompleteSharedFilterAnswersAtOnce(t *testing.T) {
	t.Parallel()
	complete := func(o *bloom.Options) { o.Complete = true }
	s := redistest.Start(t)
	rdb := s.Client(t)
	a := open(t, s.Client(t), quick, complete)
	answers(t, a)
	b := open(t, s.Client(t), quick) // need not say so itself
	answers(t, b)
	denies(t, b, 0, 1000, 0.01)
	add(t, a, 0, 1000)
	if missing(a, 0, 1000) > 0 {
		t.Error("denied after Add")
	}
	redistest.Eventually(t, 30*time.Second, "the other finds them", func() bool { return missing(b, 0, 1000) == 0 })
	c := open(t, s.Client(t), quick, complete) // as after a restart
	answers(t, c)
	if missing(c, 0, 1000) > 0 {
		t.Error("an Open has emptied it")
	}
	// It is not complete for ever: what Redis has lost did exist.
	rdb.FlushAll(context.Background())
	for _, f := range []*bloom.Filter{a, b, c} {
		abstains(t, f)
	}
	redistest.Eventually(t, 30*time.Second, "they have made a record", func() bool { return rdb.Exists(context.Background(), names.Record()).Val() == 1 })
	d := open(t, s.Client(t), quick, complete) // there is a filter, which knows nothing
	add(t, d, 0, 10)
	abstains(t, d)
	rebuild(t, d, 0, 1000)
	answers(t, a)
	// Nor is it new where only a part of it is lost.
	for _, f := range []*bloom.Filter{a, b, c, d} {
		_ = f.Close()
	}
	if err := rdb.Del(context.Background(), names.Record()).Err(); err != nil {
		t.Fatal(err)
	}
	abstains(t, open(t, s.Client(t), quick, complete))
	if shape, err := rdb.HGet(context.Background(), names.Record(), "shape").Result(); shape != "" || err != nil {
		t.Errorf("it begins with an empty snapshot: %q, %v", shape, err)
	}
}

func TestCompleteIsNotAssumedWhenRedisDoesNotAnswerOpen(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	p.Refuse(true)
	f := open(t, p.Client(t), quick, func(o *bloom.Options) { o.Complete = true })
	p.Refuse(false)
	redistest.Eventually(t, 30*time.Second, "the filter is there", func() bool { return s.Client(t).Exists(t.Context(), names.Record()).Val() == 1 })
	add(t, f, 0, 1)
	abstains(t, f)
}

package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The Shadow names what the import has changed, all of it and nothing else.
func TestTheShadowNamesWhatTheImportHasChanged(t *testing.T) {
	var out bytes.Buffer
	s := settings{length: time.Minute, share: 1, settle: 500 * time.Millisecond}
	found, err := s.play(t.Context(), &out)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found.products)
	if want := []int64{0, 1, 2, 3, 4, 5, 6}; !slices.Equal(found.products, want) {
		t.Errorf("named are %v, want %v\n%s", found.products, want, out.String())
	}
	if n := found.stats; n.Differs == 0 || n.Equal < 100 || n.Failed > 0 || n.HitRatio() < 0.3 || n.HitRatio() > 1 {
		t.Errorf("got %+v", n)
	}
	if !strings.Contains(out.String(), "Somebody writes prices and does not invalidate") {
		t.Errorf("it printed\n%s", out.String())
	}
}

func TestARealRedisIsLeftAsItWas(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	if err := rdb.Set(t.Context(), "theirs", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s := settings{redis: server.Addr(), length: 300 * time.Millisecond, share: 1}
	if _, err := s.play(t.Context(), &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if keys := rdb.Keys(t.Context(), "*").Val(); !slices.Equal(keys, []string{"theirs"}) {
		t.Errorf("left are %q", keys)
	}
}

func TestAnInterruptEndsIt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	s := settings{length: time.Hour, share: 1}
	if _, err := s.play(ctx, &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

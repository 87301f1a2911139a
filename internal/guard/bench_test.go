package guard_test

import (
	"context"
	"testing"

	"github.com/sony/gobreaker/v2"

	"github.com/levee-go/levee/internal/guard"
)

// What Do costs beside gobreaker's bare Execute, which has no limit, no timeout
// and runs the function on the caller's goroutine:
//
//	go test -run '^$' -bench . -count 5 ./breaker
func BenchmarkDo(b *testing.B) {
	for _, bench := range []struct {
		name string
		o    guard.Options
	}{
		{"default", guard.Options{}},
		{"adapting", guard.Options{MinConcurrent: 2}},
		{"no timeout", guard.Options{Timeout: -1}},
		{"all off", guard.Options{FailureRatio: -1, MaxConcurrent: -1, MaxDegraded: -1, Timeout: -1}},
	} {
		guard := newBreaker(b, bench.o)
		ctx := context.Background()
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = guard.Do(ctx, succeed)
			}
		})
		b.Run(bench.name+" parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_ = guard.Do(ctx, succeed)
				}
			})
		})
	}
}

func BenchmarkGobreaker(b *testing.B) {
	guard := gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{})
	b.ReportAllocs()
	for b.Loop() {
		_, _ = guard.Execute(func() (struct{}, error) { return struct{}{}, succeed(context.Background()) })
	}
}

func BenchmarkOpen(b *testing.B) {
	guard := newBreaker(b, guard.Options{Cooldown: 1 << 50})
	trip(b, guard)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		_ = guard.Do(ctx, succeed)
	}
}

func BenchmarkGobreakerOpen(b *testing.B) {
	guard := gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{Timeout: 1 << 50})
	for range 10 {
		_, _ = guard.Execute(func() (struct{}, error) { return struct{}{}, errSource })
	}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = guard.Execute(func() (struct{}, error) { return struct{}{}, nil })
	}
}

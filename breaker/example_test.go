package breaker_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/levee-go/levee/breaker"
)

func Example() {
	guard, err := breaker.New(breaker.Options{
		Name:          "catalogue",
		MaxConcurrent: 32,
		Timeout:       2 * time.Second,
		IsFailure:     func(err error) bool { return !errors.Is(err, sql.ErrNoRows) },
	})
	if err != nil {
		panic(err)
	}

	query := func(ctx context.Context) error { return errors.New("connection refused") }
	for range 20 {
		err = guard.Do(context.Background(), query)
	}
	fmt.Println(err)

	err = guard.Do(context.Background(), query) // is not called
	fmt.Println(err, errors.Is(err, breaker.ErrOpen))
	// Output:
	// connection refused
	// breaker: open true
}

// A Breaker runs a bounded number of functions at a time, and refuses at once those that it could not run in time.
func ExampleBreaker_Do() {
	guard, err := breaker.New(breaker.Options{MaxConcurrent: 1, QueueTimeout: -1}) // no queue
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	running, end := make(chan struct{}), make(chan struct{})
	first := make(chan error)
	go func() {
		first <- guard.Do(ctx, func(context.Context) error { close(running); <-end; return nil })
	}()
	<-running
	err = guard.Do(ctx, func(context.Context) error { return nil }) // is not called
	fmt.Println(errors.Is(err, breaker.ErrLimited))
	close(end)
	fmt.Println(<-first)
	// Output:
	// true
	// <nil>
}

// A slow answer is a failure too, and a caller who leaves is none.
func ExampleBreaker_Stats() {
	guard, err := breaker.New(breaker.Options{Timeout: time.Second})
	if err != nil {
		panic(err)
	}
	hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	fmt.Println(errors.Is(guard.Do(context.Background(), hangs), breaker.ErrTimeout))
	ctx, cancel := context.WithCancel(context.Background())
	_ = guard.Do(ctx, func(context.Context) error { cancel(); return ctx.Err() })
	s := guard.Stats()
	fmt.Println(s.State, s.Failures, s.Timeouts, s.Excluded)
	// Output:
	// true
	// closed 1 1 1
}

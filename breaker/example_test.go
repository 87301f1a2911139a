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

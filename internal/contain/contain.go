// Package contain runs functions that may panic, call runtime.Goexit or never
// return. It turns the first two into errors and leaves the third behind.
package contain

import (
	"fmt"
	"runtime/debug"
)

// PanicError reports that the function panicked, or called runtime.Goexit, as testing.T.FailNow
// does. It is the PanicError of every package of
// the library. Its text holds the stack of the panic, because the goroutine that reads the error has another one.
type PanicError struct {
	Value any    // what was passed to panic, or text that tells of the Goexit
	Stack []byte // where, as debug.Stack prints it
}

// Error says what the function panicked with, and where.
func (e *PanicError) Error() string {
	return fmt.Sprintf("levee: function panicked: %v\n\n%s", e.Value, e.Stack)
}

// Unwrap gives the value passed to panic if it was an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Go runs fn in a goroutine of its own and sends its error on the returned
// channel, exactly once: the error fn returned, or a *PanicError.
// The channel is buffered, so nobody has to listen.
func Go(fn func() error) <-chan error {
	done := make(chan error, 1)
	go Call(fn, func(err error) { done <- err })
	return done
}

// Call runs fn on the calling goroutine and then passes its error to then: the
// error fn returned, or a *PanicError. After a Goexit then is the last thing the
// goroutine does.
func Call(fn func() error, then func(error)) {
	var err error
	returned := false
	defer func() {
		v := recover() // nil of a Goexit too
		if !returned && v == nil {
			v = "runtime.Goexit was called"
		}
		if v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
		then(err)
	}()
	err = fn()
	returned = true
}

// Package contain runs functions that may panic, call runtime.Goexit or never
// return. It turns the first two into errors and leaves the third behind.
package contain

import (
	"fmt"
	"runtime/debug"
)

// PanicError reports that a function panicked, or called runtime.Goexit, as testing.T.FailNow does.
// Every package of the library uses this type. Its text includes the stack of the panic, because
// the goroutine that reads the error has a different stack.
type PanicError struct {
	Value any    // the argument of panic, or a text that reports the Goexit
	Stack []byte // the stack of the panic, as debug.Stack prints it
}

// Error returns the panic's value and its stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("levee: function panicked: %v\n\n%s", e.Value, e.Stack)
}

// Unwrap returns the value passed to panic if it was an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Go runs fn in a new goroutine and sends its error on the returned channel,
// exactly once: the error fn returned, or a *PanicError.
// The channel is buffered, so nobody has to receive from it.
func Go(fn func() error) <-chan error {
	done := make(chan error, 1)
	go Call(fn, func(err error) { done <- err })
	return done
}

// Call runs fn on the calling goroutine and then passes its error to then: the
// error fn returned, or a *PanicError. After a Goexit the goroutine ends when then
// returns.
func Call(fn func() error, then func(error)) {
	var err error
	returned := false
	defer func() {
		v := recover() // nil after a Goexit too
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

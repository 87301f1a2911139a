package contain_test

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/levee-go/levee/internal/contain"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestGoReportsHowTheFunctionEnded(t *testing.T) {
	for _, test := range []struct {
		name string
		fn   func() error
		want error
	}{
		{"return nil", func() error { return nil }, nil},
		{"return an error", func() error { return io.EOF }, io.EOF},
		{"panic with an error", func() error { panic(io.EOF) }, io.EOF},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := <-contain.Go(test.fn); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

func TestPanicErrorCarriesTheStackOfThePanic(t *testing.T) {
	err := <-contain.Go(func() error { return explode() })
	var panicked *contain.PanicError
	if !errors.As(err, &panicked) || panicked.Value != "boom" {
		t.Fatalf("got %v, want a PanicError of boom", err)
	}
	if !strings.Contains(err.Error(), "contain_test.explode") {
		t.Errorf("the stack does not name the function that panicked:\n%v", err)
	}
}

// The stack shows where Goexit was called, and the text that it was no panic.
func TestAGoexitIsAPanicErrorThatSaysSo(t *testing.T) {
	err := <-contain.Go(func() error { return leave() })
	var panicked *contain.PanicError
	if !errors.As(err, &panicked) || !strings.Contains(err.Error(), "runtime.Goexit was called") || !strings.Contains(err.Error(), "contain_test.leave") {
		t.Errorf("got %v", err)
	}
}

//go:noinline
func leave() error { runtime.Goexit(); return nil }

//go:noinline
func explode() error { panic("boom") }

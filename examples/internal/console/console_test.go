package console

import (
	"context"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNumbersAreWrittenForPeople(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := Count(n); got != want {
			t.Errorf("%d is %q", n, got)
		}
	}
	for d, want := range map[time.Duration]string{0: "0.0 ms", 1260 * time.Microsecond: "1.3 ms", 31 * time.Millisecond: "31 ms", 2 * time.Second: "2000 ms"} {
		if got := Millis(d); got != want {
			t.Errorf("%v is %q", d, got)
		}
	}
}

type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, errors.New("nobody reads") }

func TestAProgramEndsWhenNobodyReads(t *testing.T) {
	ended := false
	o := &output{closed{}, func() { ended = true }}
	if _, err := o.Write([]byte("line")); err == nil || !ended {
		t.Errorf("ended %v, %v", ended, err)
	}
}

func TestHowAProgramEnds(t *testing.T) {
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx    context.Context
		args   []string
		err    error // of what the program does
		code   int
		stderr string
	}{
		"well":               {t.Context(), []string{"-n", "7"}, nil, 0, ""},
		"help":               {t.Context(), []string{"-h"}, nil, 0, "Counts.\n  -n int\n    \thow far\n"},
		"an unknown flag":    {t.Context(), []string{"-x"}, nil, 2, "count: flag provided but not defined: -x (count -h lists the flags)\n"},
		"an argument":        {t.Context(), []string{"-n", "7", "8"}, nil, 2, "count: unexpected argument \"8\" (count -h lists the flags)\n"},
		"a failure in lines": {t.Context(), []string{"-n", "7"}, errors.New("no\n  answer"), 1, "count: no answer\n"},
		"interrupted":        {cut, []string{"-n", "7"}, context.Canceled, 1, "count: interrupted\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr strings.Builder
			n := 0
			code := Run(test.ctx, "count", test.args, &stderr, func(args []string, stderr io.Writer) (n int, err error) {
				flags := flag.NewFlagSet("count", flag.ContinueOnError)
				flags.IntVar(&n, "n", 0, "how far")
				err = Parse(flags, args, "Counts.", stderr)
				return n, err
			}, func(settings int) error {
				n = settings
				return test.err
			})
			if code != test.code || stderr.String() != test.stderr {
				t.Errorf("status %d and %q, want %d and %q", code, stderr.String(), test.code, test.stderr)
			}
			if ran := n == 7; ran != (test.code < 2 && name != "help") {
				t.Errorf("it got %d", n)
			}
		})
	}
}

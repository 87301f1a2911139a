package console

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// Run runs the two halves of a program: parse reads its flags, do does what they say. It tells stderr what went wrong, and returns the status
// to exit with: 2 for a mistake in the flags and 1 for any other failure.
func Run[S any](ctx context.Context, name string, args []string, stderr io.Writer,
	parse func(args []string, stderr io.Writer) (S, error), do func(settings S) error) int {
	settings, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v (%s -h lists the flags)\n", name, err, name)
		return 2
	}
	err = do(settings)
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %s\n", name, strings.Join(strings.Fields(err.Error()), " ")) // some drivers write several lines
		return 1
	}
	return 0
}

// Parse reads the flags in args, and takes nothing else. If they ask for help it prints about, what the program is for, and the flags to
// stderr, and returns flag.ErrHelp. It prints no other error.
func Parse(flags *flag.FlagSet, args []string, about string, stderr io.Writer) error {
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(stderr, about)
		flags.SetOutput(stderr)
		flags.PrintDefaults()
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return err
}

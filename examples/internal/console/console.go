// Package console is what the examples share as programs: how they begin and end, and how they write numbers.
package console

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// Main runs a program and exits with the status that it returns. The context ends when the program is to clean up and end: when it is
// interrupted or terminated, or when nobody reads its output any more. A second signal ends it at once.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) {
	ctx, cancel := context.WithCancel(context.Background())
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)
	signal.Ignore(syscall.SIGPIPE) // a reader who has seen enough (| head) must not keep it from cleaning up either
	code := run(ctx, os.Args[1:], &output{os.Stdout, cancel}, os.Stderr)
	cancel()
	os.Exit(code)
}

// An output ends the program when nobody reads it any more.
type output struct {
	io.Writer
	end func()
}

func (o *output) Write(p []byte) (n int, err error) {
	if n, err = o.Writer.Write(p); err != nil {
		o.end()
	}
	return n, err
}

// Count writes a number with its thousands apart.
func Count[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Millis writes a duration in milliseconds, with a digit behind the point if it is a short one.
func Millis(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	if ms < 10 {
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", ms)
}

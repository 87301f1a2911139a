package console

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// During shows on out what is going on until the function it returns is called, with the time since the program began: as a live line on a
// terminal, else as one line.
func During(out io.Writer, began time.Time, what string, state func() string) (done func()) {
	if !isTerminal(out) {
		fmt.Fprintf(out, "%4.0fs  %s\n", time.Since(began).Seconds(), what)
		return func() {}
	}
	end := make(chan struct{})
	var live sync.WaitGroup
	live.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			fmt.Fprintf(out, "\r\x1b[K%4.0fs  %s  %s", time.Since(began).Seconds(), what, state())
			select {
			case <-tick.C:
			case <-end:
				fmt.Fprint(out, "\r\x1b[K")
				return
			}
		}
	})
	return func() {
		close(end)
		live.Wait()
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

package stage

import (
	"fmt"
	"io"
	"time"

	"github.com/levee-go/levee/examples/internal/console"
)

// A report prints the table row by row, as the recipes end.
type report struct {
	out     io.Writer
	columns []string
}

const nameWidth = 38

func newReport(out io.Writer, columns []string) *report { return &report{out, columns} }

func (r *report) opening(about, database, redis string) {
	fmt.Fprintf(r.out, "%s\n%s, %s, %d processes\n\n%-*s", about, database, redis, processes, nameWidth, "")
	for _, c := range r.columns {
		fmt.Fprintf(r.out, "%10s", c)
	}
	fmt.Fprintf(r.out, "%9s%9s%9s%8s%9s%8s%8s\n", "p50", "p99", "refused", "p50", "failed", "last", "all")
}

func (r *report) row(result Result) {
	fmt.Fprintf(r.out, "%-*s", nameWidth, result.Recipe)
	for _, c := range result.Cells {
		fmt.Fprintf(r.out, "%10s", c)
	}
	t := result.Tally
	fmt.Fprintf(r.out, "%9s%9s%9d%8s%9d%7.2fs%7.2fs\n",
		console.Millis(Percentile(t.Waits, 0.5)), console.Millis(Percentile(t.Waits, 0.99)), t.Refused, console.Millis(Percentile(t.WaitsRefused, 0.5)), t.Failed, t.LastServed.Seconds(), result.Took.Seconds())
	switch {
	case result.Wrong != "":
		fmt.Fprintf(r.out, "    WRONG: %s\n", result.Wrong)
	case result.Naive:
		fmt.Fprint(r.out, "    nothing went wrong this time\n")
	}
	if t.Failed > 0 {
		fmt.Fprintf(r.out, "    the first failure: %s\n", t.FirstFailure)
	}
}

func (r *report) closing(took time.Duration) {
	fmt.Fprintf(r.out, `
p50, p99: what those waited who were served; refused: turned down, as it should be, and what these waited; failed: no answer, an error
last: when the last was served; all: when the last was answered
measured in %.0f s
`, took.Seconds())
}

package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// childVariable is the environment variable that holds a child's task.
const childVariable = "LEVEE_BENCH_TASK"

// A task is what one process does.
type task struct {
	Workload, Contender string
	Size                size
	Process, Processes  int    // which of how many
	Redis               string // address of Redis, or of the proxy before it
	Direct              string // address of Redis itself, to ask what it has counted
	Profiles            string // directory for a CPU profile; empty: none
}

// A report is what the processes of a run have measured.
type report struct {
	Counts map[string]float64   // summed over the processes
	Times  map[string][]float64 // microseconds; of all processes
}

// quantile returns the q-quantile of the times of a name, which are sorted.
func (r report) quantile(name string, q float64) float64 {
	times := r.Times[name]
	if len(times) == 0 {
		return 0
	}
	return times[int(q*float64(len(times)-1))]
}

// add adds what another process has measured.
func (r *report) add(other report) {
	if r.Counts == nil {
		r.Counts, r.Times = map[string]float64{}, map[string][]float64{}
	}
	for name, n := range other.Counts {
		r.Counts[name] += n
	}
	for name, times := range other.Times {
		r.Times[name] = append(r.Times[name], times...)
	}
}

// A process is what a workload's run knows of its process. Its methods may be called
// concurrently, but for meet
// and trips.
type process struct {
	task
	in    *bufio.Scanner
	out   io.Writer
	stats *redis.Client // see trips
	asked float64       // how often trips was called

	mu     sync.Mutex
	report report // guarded by mu
}

// count adds n to a count of the report.
func (p *process) count(name string, n float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Counts[name] += n
}

// took adds times to the report.
func (p *process) took(name string, times ...time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range times {
		p.report.Times[name] = append(p.report.Times[name], float64(t)/float64(time.Microsecond))
	}
}

// meet waits until all processes of the run are here.
func (p *process) meet() error {
	fmt.Fprintln(p.out, "meet")
	if !p.in.Scan() {
		return errors.New("the parent is gone")
	}
	return nil
}

// childMain does a task and returns the exit status. What it measured, or "meet", goes to standard output.
func childMain(text string) int {
	p := &process{in: bufio.NewScanner(os.Stdin), out: os.Stdout}
	p.report = report{map[string]float64{}, map[string][]float64{}}
	err := json.Unmarshal([]byte(text), &p.task)
	os.Stdout = os.Stderr // some contenders print
	if err == nil {
		p.stats = statsClient(p.Direct)
		defer p.stats.Close()
		err = p.run(context.Background())
	}
	if err == nil {
		err = json.NewEncoder(p.out).Encode(p.report)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// run does the task, under a profile if there is to be one.
func (p *process) run(ctx context.Context) error {
	w, ok := findWorkload(p.Workload)
	if !ok {
		return fmt.Errorf("there is no workload %q", p.Workload)
	}
	if p.Profiles == "" {
		return w.run(ctx, p)
	}
	f, err := os.Create(filepath.Join(p.Profiles, fmt.Sprintf("%s %s %d.pprof", p.Workload, p.Contender, p.Process)))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return w.run(ctx, p)
}

// A child is a process as its parent sees it.
type child struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	said bounded // on its standard error
}

// startChild starts this program again, with a task.
func startChild(ctx context.Context, t task) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self)}
	c.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	c.cmd.Stderr = &c.said
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.out = bufio.NewReader(out)
		c.in, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	return c, err
}

// next returns the child's report, or false when it waits for the others.
func (c *child) next() (r report, over bool, err error) {
	line, err := c.out.ReadBytes('\n')
	switch {
	case err != nil:
		err = cmp.Or(c.cmd.Wait(), err)
		return r, true, fmt.Errorf("%w: %s", err, strings.TrimSpace(c.said.text()))
	case string(line) == "meet\n":
		return r, false, nil
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, true, err
	}
	if err := c.cmd.Wait(); err != nil {
		return r, true, fmt.Errorf("%w: %s", err, strings.TrimSpace(c.said.text()))
	}
	return r, true, nil
}

// together runs the processes of one contender to their end.
func together(ctx context.Context, tasks []task) (all report, err error) {
	ctx, cancel := context.WithCancel(ctx) // which kills those that are left after an error
	defer cancel()
	var running []*child
	for _, t := range tasks {
		c, err := startChild(ctx, t)
		if err != nil {
			return all, err
		}
		running = append(running, c)
	}
	for len(running) > 0 {
		var waiting []*child
		for _, c := range running {
			switch r, over, err := c.next(); {
			case err != nil:
				return all, err
			case over:
				all.add(r)
			default:
				waiting = append(waiting, c)
			}
		}
		for _, c := range waiting {
			if _, err := fmt.Fprintln(c.in, "go"); err != nil {
				return all, err
			}
		}
		running = waiting
	}
	for _, times := range all.Times {
		slices.Sort(times)
	}
	return all, nil
}

// bounded keeps the last of what is written to it.
type bounded struct {
	mu   sync.Mutex
	last []byte
}

func (b *bounded) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = append(b.last, data...)
	b.last = b.last[max(0, len(b.last)-2000):]
	return len(data), nil
}

func (b *bounded) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.last)
}

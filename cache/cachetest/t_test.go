package cachetest_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// An exampleT stands for the *testing.T of a test, which an Example has not.
type exampleT struct {
	testing.TB
	ctx    context.Context
	stop   context.CancelFunc // ends ctx, as the return of a test function does
	out    lines
	failed string

	mu       sync.Mutex // guards cleanups
	cleanups []func()
}

func newTest() *exampleT {
	t := &exampleT{}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// end does what package testing does after a test.
func (t *exampleT) end() {
	t.stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.cleanups {
		t.cleanups[len(t.cleanups)-1-i]()
	}
}

func (t *exampleT) Helper()                  {}
func (t *exampleT) Context() context.Context { return t.ctx }
func (t *exampleT) Output() io.Writer        { return &t.out }

func (t *exampleT) Cleanup(fn func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, fn)
}

func (t *exampleT) Fatalf(format string, args ...any) {
	t.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// lines are what is written to the output of a test.
type lines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

// The program is told to stop while a write is in its transaction. The write ends, and so does what runs in the
// background; then Serve returns, and the caches may be closed.
func TestServeReturnsAfterTheLastRequestAndTheBackground(t *testing.T) {
	addr := fmt.Sprint("127.0.0.1:", redistest.FreePort())
	t.Setenv("ADDR", addr)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var moved, followed atomic.Bool
	routes := Routes[string]{
		Hotel: func(context.Context, int64) (string, error) { return "Bristol", nil },
		Move: func(context.Context, int64, string) error {
			stop()
			time.Sleep(200 * time.Millisecond) // the commit, and then the invalidation
			moved.Store(true)
			return nil
		},
		Absent: func(error) bool { return false },
	}
	follow := func(ctx context.Context) error {
		<-ctx.Done()
		if !moved.Load() {
			t.Error("the background ends before the request")
		}
		time.Sleep(50 * time.Millisecond) // the lock of the feed is given back
		followed.Store(true)
		return ctx.Err()
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		Serve(ctx, routes, follow)
		if !moved.Load() || !followed.Load() {
			t.Errorf("Serve has returned, and of the request and the background these have ended: %v, %v", moved.Load(), followed.Load())
		}
	}()
	redistest.Eventually(t, 10*time.Second, "the service answers", func() bool {
		resp, err := http.Get("http://" + addr + "/hotel/1")
		return err == nil && errors.Join(resp.Body.Close()) == nil
	})
	put, err := http.NewRequest(http.MethodPut, "http://"+addr+"/hotel/1/city/Rome", nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := http.DefaultClient.Do(put); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the write has committed, and its caller gets %v, %v", resp, err)
	}
	<-served
}

// A deployment ends the program by SIGTERM.
func TestContextEndsBySIGTERM(t *testing.T) {
	ctx, stop := Context()
	defer stop()
	me, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = me.Signal(syscall.SIGTERM)
	}
	if err != nil {
		t.Skip(err) // Windows has no signals
	}
	<-ctx.Done()
}

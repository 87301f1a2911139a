package redisconn_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

// BenchmarkRead is a read of 200 bytes by 1 to 1,024 callers at a time, and a plain
// GETRANGE of as many.
//
//	go test -run '^$' -bench Read -benchtime 0.5s -count 3 ./internal/redisconn
func BenchmarkRead(b *testing.B) {
	server := redistest.Start(b)
	rdb := server.Client(b)
	for i := range 1000 {
		rdb.Set(b.Context(), fmt.Sprint("k", i), strings.Repeat("x", 200), 0)
	}
	c := redisconn.New(rdb, 100*time.Millisecond, 1000)
	defer c.Close()
	for _, callers := range []int{1, 16, 256, 1024} {
		for name, read := range map[string]func(key string) ([]byte, error){
			"lane":     func(key string) ([]byte, error) { return c.Read(b.Context(), key, 1<<20) },
			"getrange": func(key string) ([]byte, error) { return rdb.GetRange(b.Context(), key, 0, 1<<20).Bytes() },
		} {
			b.Run(fmt.Sprint(name, "/", callers), func(b *testing.B) {
				b.ReportAllocs()
				var all sync.WaitGroup
				for caller := range callers {
					all.Go(func() {
						for i := range b.N/callers + 1 {
							if data, err := read(fmt.Sprint("k", (caller+i*7)%1000)); err == nil && len(data) != 200 {
								b.Error(len(data), err)
								return
							}
						}
					})
				}
				all.Wait()
			})
		}
	}
}

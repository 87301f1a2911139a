package bloom_test

import (
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
)

// Lines of a filter carry their events, as those of a cache do.
func TestALineOfAFilterCarriesItsEvent(t *testing.T) {
	var log redistest.Log
	s := redistest.Start(t)
	rdb := s.Client(t)
	s.Kill()
	f, err := bloom.Open(t.Context(), rdb, bloom.Options{Name: "ids", Capacity: 1000, Logger: log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	redistest.Eventually(t, 20*time.Second, "the line is there", func() bool { return log.Count("event=filter_without_redis") == 1 })
}

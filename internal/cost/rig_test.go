package cost_test

import (
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m, nil) }

type product struct {
	ID    int64
	Name  string
	Tags  []string          `json:",omitempty"`
	Notes map[string]string `json:",omitempty"`
	Until time.Time
}

type pair struct{ A, B int64 }

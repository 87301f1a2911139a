package cache_test

import (
	"testing"

	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) {
	redistest.Main(m, redistest.Roles{"reader": reader, "stalled": stalled, "writer": writer, "keeper": keeperRole})
}

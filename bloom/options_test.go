package bloom_test

import (
	"math"
	"strings"
	"testing"

	"github.com/levee-go/levee/bloom"
)

func TestNewNamesTheOptionThatIsWrong(t *testing.T) {
	for _, test := range []struct {
		o    bloom.Options
		want string
	}{
		{bloom.Options{}, "Capacity"},
		{bloom.Options{Capacity: math.MaxUint64}, "Capacity"},
		{bloom.Options{Capacity: 1 << 40}, "Capacity"},
		{bloom.Options{Capacity: 2 << 30, Counting: true}, "Capacity"},
		{bloom.Options{Capacity: 1, FalsePositiveRate: -0.1}, "FalsePositiveRate"},
		{bloom.Options{Capacity: 1, FalsePositiveRate: 1}, "FalsePositiveRate"},
		{bloom.Options{Capacity: 1, FalsePositiveRate: 1e-300}, "FalsePositiveRate"},
		{bloom.Options{Capacity: 1, FalsePositiveRate: math.NaN()}, "FalsePositiveRate"},
		{bloom.Options{Capacity: 1, FalsePositiveRate: math.Inf(1)}, "FalsePositiveRate"},
		{bloom.Options{Capacity: 1, MaxFalsePositiveRate: 0.001}, "MaxFalsePositiveRate"},
		{bloom.Options{Capacity: 1, MaxFalsePositiveRate: 1.1}, "MaxFalsePositiveRate"},
		{bloom.Options{Capacity: 1, MaxFalsePositiveRate: math.NaN()}, "MaxFalsePositiveRate"},
		{bloom.Options{Capacity: 1, Secret: []byte("short")}, "Secret"},
		{bloom.Options{Capacity: 1, MaxLag: -1}, "MaxLag"},
	} {
		_, err := bloom.New(test.o)
		if err == nil || !strings.HasPrefix(err.Error(), "bloom: "+test.want) {
			t.Errorf("%+v: got %v, want an error that begins with %s", test.o, err, test.want)
		}
	}
}

func TestNewAcceptsWhatItsDocumentationAllows(t *testing.T) {
	for _, o := range []bloom.Options{
		{Capacity: 1},
		{Capacity: 1, FalsePositiveRate: 1e-9},
		{Capacity: 1, FalsePositiveRate: 0.999},
		{Capacity: 1, MaxFalsePositiveRate: 1},
		{Capacity: 1, MaxFalsePositiveRate: -1, MaxTransaction: -1},
		{Capacity: 1, Secret: make([]byte, 16)},
		{Capacity: 1, Secret: make([]byte, 1000)},
	} {
		f, err := bloom.New(o)
		if err != nil {
			t.Errorf("%+v: %v", o, err)
		}
		_ = f.Close()
	}
}

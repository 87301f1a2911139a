package bloom

import (
	"errors"
	"strings"
	"testing"
)

// Somebody who has set Capacity cannot make anything of positions.
func TestErrParametersNamesTheOption(t *testing.T) {
	stored, _, err := newHeader(Options{Capacity: 1000, FalsePositiveRate: 0.01})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		o    Options
		want string
	}{
		{Options{Name: "product", Capacity: 2000, FalsePositiveRate: 0.01}, `"product" was made with a Capacity of about 1`},
		{Options{Name: "product", Capacity: 1000, FalsePositiveRate: 0.001}, `with a FalsePositiveRate from 0.0078 to 0.016, and is opened with FalsePositiveRate 0.001`},
	} {
		_, err := stored.accept(test.o)
		if !errors.Is(err, ErrParameters) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "positions") {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}

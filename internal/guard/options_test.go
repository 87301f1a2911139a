package guard_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/guard"
)

func TestNewNamesTheOptionThatIsWrong(t *testing.T) {
	for _, test := range []struct {
		o    guard.Options
		want []string
	}{
		{guard.Options{FailureRatio: 1.5}, []string{"FailureRatio"}},
		{guard.Options{FailureRatio: math.NaN()}, []string{"FailureRatio"}},
		{guard.Options{MinRequests: -1}, []string{"MinRequests"}},
		{guard.Options{MinRequests: math.MaxInt, MaxConcurrent: 1}, []string{"MinRequests"}},
		{guard.Options{Window: -1}, []string{"Window"}},
		{guard.Options{MinConcurrent: -1}, []string{"MinConcurrent"}},
		{guard.Options{MinConcurrent: 65}, []string{"MinConcurrent", "MaxConcurrent", "65", "64"}},
		{guard.Options{MinConcurrent: 1, MaxConcurrent: -1}, []string{"MinConcurrent", "MaxConcurrent"}},
		{guard.Options{Cooldown: -1}, []string{"Cooldown"}},
		{guard.Options{Cooldown: math.MaxInt64}, []string{"Cooldown"}},
		{guard.Options{Timeout: math.MaxInt64}, []string{"Timeout"}},
		{guard.Options{QueueTimeout: math.MaxInt64}, []string{"QueueTimeout"}},
		{guard.Options{Window: 15 * time.Second, Timeout: 8 * time.Second}, []string{"Window", "Timeout"}},
		{guard.Options{Window: 15 * time.Second, MaxConcurrent: 2}, []string{"Window", "Timeout", "MinRequests", "MaxConcurrent"}},
	} {
		_, err := guard.New(test.o)
		if err == nil {
			t.Errorf("%+v: accepted, want an error of %v", test.o, test.want)
			continue
		}
		if !strings.HasPrefix(err.Error(), "breaker: ") {
			t.Errorf("%q does not begin with the package's name", err)
		}
		for _, name := range test.want {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%q does not name %s", err, name)
			}
		}
	}
}

func TestNewAcceptsWhatItsDocumentationAllows(t *testing.T) {
	for _, o := range []guard.Options{
		{},
		{FailureRatio: 1},
		{FailureRatio: -1, Window: time.Second},
		{Timeout: -1, Window: time.Second},
		{Timeout: time.Minute},
		{MaxConcurrent: 1},
		{MaxConcurrent: -1, MaxDegraded: -1, QueueTimeout: -1, MaxQueue: -1, Timeout: -1, FailureRatio: -1},
		{MaxConcurrent: math.MaxInt, MaxQueue: math.MaxInt},
	} {
		if _, err := guard.New(o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestStatesHaveNames(t *testing.T) {
	for state, want := range map[guard.State]string{
		guard.Closed: "closed", guard.HalfOpen: "half-open", guard.Open: "open", 7: "State(7)",
	} {
		if state.String() != want {
			t.Errorf("got %q, want %q", state, want)
		}
	}
}

package breaker_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/breaker"
)

func TestNewNamesTheOptionThatIsWrong(t *testing.T) {
	for _, test := range []struct {
		o    breaker.Options
		want []string
	}{
		{breaker.Options{FailureRatio: 1.5}, []string{"FailureRatio"}},
		{breaker.Options{FailureRatio: math.NaN()}, []string{"FailureRatio"}},
		{breaker.Options{MinRequests: -1}, []string{"MinRequests"}},
		{breaker.Options{MinRequests: math.MaxInt, MaxConcurrent: 1}, []string{"MinRequests"}},
		{breaker.Options{Window: -1}, []string{"Window"}},
		{breaker.Options{Cooldown: -1}, []string{"Cooldown"}},
		{breaker.Options{Cooldown: math.MaxInt64}, []string{"Cooldown"}},
		{breaker.Options{Timeout: math.MaxInt64}, []string{"Timeout"}},
		{breaker.Options{QueueTimeout: math.MaxInt64}, []string{"QueueTimeout"}},
		{breaker.Options{Window: 15 * time.Second, Timeout: 8 * time.Second}, []string{"Window", "Timeout"}},
		{breaker.Options{Window: 15 * time.Second, MaxConcurrent: 2}, []string{"Window", "Timeout", "MinRequests", "MaxConcurrent"}},
	} {
		_, err := breaker.New(test.o)
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
	for _, o := range []breaker.Options{
		{},
		{FailureRatio: 1},
		{FailureRatio: -1, Window: time.Second},
		{Timeout: -1, Window: time.Second},
		{Timeout: time.Minute},
		{MaxConcurrent: 1},
		{MaxConcurrent: -1, MaxDegraded: -1, QueueTimeout: -1, MaxQueue: -1, Timeout: -1, FailureRatio: -1},
		{MaxConcurrent: math.MaxInt, MaxQueue: math.MaxInt},
	} {
		if _, err := breaker.New(o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestStatesHaveNames(t *testing.T) {
	for state, want := range map[breaker.State]string{
		breaker.Closed: "closed", breaker.HalfOpen: "half-open", breaker.Open: "open", 7: "State(7)",
	} {
		if state.String() != want {
			t.Errorf("got %q, want %q", state, want)
		}
	}
}

package console

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNumbersAreWrittenForPeople(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := Count(n); got != want {
			t.Errorf("%d is %q", n, got)
		}
	}
	for d, want := range map[time.Duration]string{0: "0.0 ms", 1260 * time.Microsecond: "1.3 ms", 31 * time.Millisecond: "31 ms", 2 * time.Second: "2000 ms"} {
		if got := Millis(d); got != want {
			t.Errorf("%v is %q", d, got)
		}
	}
}

type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, errors.New("nobody reads") }

func TestAProgramEndsWhenNobodyReads(t *testing.T) {
	ended := false
	o := &output{closed{}, func() { ended = true }}
	if _, err := o.Write([]byte("line")); err == nil || !ended {
		t.Errorf("ended %v, %v", ended, err)
	}
}

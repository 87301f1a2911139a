//go:build levee_failpoint

package guard_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/guard"
)

// The breaker opens right after it has let a call in, and is half-open later. Catches a call that is taken for
// the one that tries: its nested calls would run beside that one.
func TestACallThatWasLetInBeforeItOpenedDoesNotTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, guard.Options{Timeout: time.Minute})
		failpoint.Set(func(name string) {
			if name == "admitted" {
				failpoint.Set(nil)
				trip(t, b)
			}
		})
		defer failpoint.Set(nil)
		_ = b.Do(t.Context(), func(ctx context.Context) error {
			time.Sleep(7 * time.Second)
			release := make(chan struct{})
			occupy(b, 1, release)
			defer close(release)
			if err := b.Do(ctx, succeed); !errors.Is(err, guard.ErrOpen) {
				t.Errorf("nested: got %v, want ErrOpen", err)
			}
			return nil
		})
	})
}

//go:build levee_failpoint

package linear

import (
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/redistest"
)

func init() {
	sabotage = func(without string) {
		failpoint.PlainCommit = strings.Contains(without, "lease")
		failpoint.KeepRefused = strings.Contains(without, "reload")
		failpoint.JoinAny = strings.Contains(without, "join")
		failpoint.SealEarly = strings.Contains(without, "seal")
		failpoint.Set(func(string) { pause() })
	}
}

// Each of these is the protocol with a safeguard left out, down to the recipe that
// everybody writes. If the check could not tell them from the whole one, it would
// prove nothing.
func TestProtocolsWithoutTheirSafeguardsAreCaught(t *testing.T) {
	for _, test := range []struct{ name, without string }{
		{"a mutex that guards nothing but the load", "lease+join"},
		{"a refused value is answered to everybody", "reload+join"},
		{"callers may join after the invalidation", "join"},
		{"callers may join until the publication", "seal+join"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := redistest.Start(t)
			for range 20 {
				// Short ones: the worse a history is, the longer it takes to rule
				// an order out.
				history := record(t, s.Addr(), calm, 300*time.Millisecond, test.without)
				if check(history, 500*time.Millisecond) == porcupine.Illegal {
					return
				}
				s.Client(t).FlushAll(t.Context())
			}
			t.Error("20 histories without a fault found")
		})
	}
}

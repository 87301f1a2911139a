package linear

import (
	"os"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// insistent is set in a mutant: there the tests below go on until they find the fault.
const insistent = "LEVEE_LINEAR_MUTANT"

// Many short histories find what is badly broken sooner than one long one: the worse a
// history is, the longer it takes to rule an order out.
func TestShortHistoriesAreLinearizable(t *testing.T) { shortOrders(t, kinds...) }

// shortOrders fails for a short history that is surely not linearizable. A stale read shows
// it at once, however slow the machine. Few keys may be left without a verdict: a check that
// gives up finds nothing.
func shortOrders(t *testing.T, kinds ...string) {
	judged, unknown := 0, 0
	for _, kind := range kinds {
		shortHistories(t, func(history []op) bool {
			if isStale(history) {
				return true
			}
			v := judge(register, ordered(kind, history), time.Second)
			judged, unknown = judged+v[porcupine.Ok]+v[porcupine.Unknown], unknown+v[porcupine.Unknown]
			return v[porcupine.Illegal] > 0
		}, kind)
	}
	t.Logf("%d of %d keys could not be judged", unknown, judged)
	if unknown*20 > judged && !t.Failed() {
		t.Error("these are too many")
	}
}

func isStale(history []op) bool { return len(stale(history)) > 0 }

// shortHistories records a few short histories of each kind, or, in a mutant, as many as
// may be needed to meet a fault.
func shortHistories(t *testing.T, wrong func([]op) bool, kinds ...string) {
	histories := 2
	if os.Getenv(insistent) != "" {
		histories = 50
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			for n := range histories {
				if wrong(simulate(t, kind)) {
					t.Fatalf("history %d is not linearizable, or stale", n)
				}
			}
		})
	}
}

// A rolling deployment and its rollback, see TestNoReadIsStaleDuringADeployment.
func TestShortHistoriesOfTwoReleasesAreNotStale(t *testing.T) { shortHistories(t, isStale, "releases") }

// The same with writers who clear the whole cache.
func TestShortHistoriesWithClearsAreLinearizable(t *testing.T) { shortOrders(t, "clears") }

// The same with a loader that is told what it replaces, and a source that calls it unmodified
// though it is not.
func TestShortHistoriesOfUnmodifiedValuesAreLinearizable(t *testing.T) { shortOrders(t, "unmodified") }

// The same with writers who clear the tags of a key, and with a local tier in one process of the two.
func TestShortHistoriesWithClearsOfTagsAreLinearizable(t *testing.T) { shortOrders(t, "tags") }

// The same with writers who know nothing of the cache, which follows a feed.
func TestShortHistoriesOfAFeedAreNotStale(t *testing.T) { shortHistories(t, isStale, "feeds") }

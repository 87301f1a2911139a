//go:build levee_failpoint

package tier

import (
	"testing"

	"github.com/levee-go/levee/internal/failpoint"
)

// A Get looks into ristretto, then into the queue, and once more into ristretto if an item has left the
// queue meanwhile. Catches an item that has left and does not say so: what was filled is missed.
func TestAnItemSaysThatItHasLeftTheQueueBeforeItIsGone(t *testing.T) {
	var q queue
	it, looked := &head{hash: 1}, false
	q.enter(1, it)
	failpoint.Set(func(string) {
		looked = true
		if q.waiting.Load() == 0 && q.settled.Load() == 0 {
			t.Error("nothing is waiting, and nothing has left")
		}
	})
	defer failpoint.Set(nil)
	q.leave(it)
	if !looked || q.waiting.Load() != 0 || q.settled.Load() != 1 {
		t.Errorf("the point was reached: %v; %d waiting, %d have left", looked, q.waiting.Load(), q.settled.Load())
	}
}

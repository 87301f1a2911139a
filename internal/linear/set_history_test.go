package linear

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

// set is the model of one key of a set: it is absent (0) or present (1).
var set = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, _ any) (bool, any) {
		o := input.(op)
		if o.Write {
			return true, o.Value
		}
		return state.(int64) == o.Value, state
	},
	DescribeOperation: func(input, _ any) string {
		o := input.(op)
		what := map[bool]string{true: "write", false: "read"}[o.Write]
		return fmt.Sprintf("%s %d: %s", what, o.Key, []string{"absent", "present"}[o.Value])
	},
}

// lagging gives each operation the time from which on it may have had its effect.
func lagging(history []op) []op {
	history = slices.Clone(history)
	for i := range history {
		history[i].Call = history[i].Since
	}
	return history
}

// Caches in two processes share a filter. Rows are created, read and deleted, and the filter
// is rebuilt all the while, each time by a process with another Capacity and rate. Once the
// Write of a row has returned, or anybody has seen it, nobody is told that it is absent:
// not by a null, not by the filter of the cache that has written it, and by the filter of
// another no later than MaxLag. Without that allowance the histories have a fault, else they
// would prove nothing.
func TestRowsAndNullsOfManyCachesAreLinearizable(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	target := redistest.Pick(3_000, 500_000)
	if os.Getenv(insistent) != "" {
		target = 500_000 // on a busy machine the fault may take long
	}
	s := redistest.Start(t)
	total, absent, denied, faults := 0, 0, 0, 0
	for total < target {
		history := recordSet(t, s.Addr(), redistest.Pick(time.Second, 10*time.Second))
		switch checkModel(set, lagging(history), time.Minute) {
		case porcupine.Illegal:
			t.Fatalf("not linearizable, after %d good operations", total)
		case porcupine.Unknown:
			t.Fatal("the check did not come to an end")
		}
		if checkModel(set, history, time.Second) == porcupine.Illegal {
			faults++
		}
		for _, o := range history {
			if !o.Write && o.Value == 0 {
				absent++
			}
			if o.Since < o.Call {
				denied++
			}
		}
		total += len(history)
		s.Client(t).FlushAll(t.Context())
	}
	if denied == 0 || denied == absent || faults == 0 {
		t.Errorf("%d were told that a row is absent, %d of them by a filter; %d histories show a lag", absent, denied, faults)
	}
	t.Logf("%d operations by %d caches in %d processes, in order; %d found nothing, of which %d by a filter", total, processes*members, processes, absent, denied)
}

func TestTheSetModelKnowsAGoodHistory(t *testing.T) {
	good := []op{
		{Client: 1, Key: 7, Value: 0, Call: 1, Return: 2},
		{Client: 1, Key: 7, Write: true, Value: 1, Call: 10, Return: 20},
		{Client: 2, Key: 7, Value: 0, Call: 11, Return: 12},
		{Client: 2, Key: 7, Value: 1, Call: 13, Return: 14},
		{Client: 2, Key: 8, Value: 0, Call: 23, Return: 24},
	}
	if checkModel(set, good, time.Minute) != porcupine.Ok {
		t.Error("a read beside the write may find the row or not")
	}
	for name, bad := range map[string]op{
		"absent after the write":           {Client: 3, Key: 7, Value: 0, Call: 21, Return: 22},
		"absent after it was seen":         {Client: 3, Key: 7, Value: 0, Call: 15, Return: 16},
		"present before anybody wrote":     {Client: 3, Key: 7, Value: 1, Call: 3, Return: 4},
		"present although nobody wrote it": {Client: 3, Key: 8, Value: 1, Call: 25, Return: 26},
	} {
		if checkModel(set, append(slices.Clone(good), bad), time.Minute) != porcupine.Illegal {
			t.Error(name)
		}
	}
}

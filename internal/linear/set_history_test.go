package linear

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

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

// Caches in two processes share a filter that looks into Redis before each no. Rows are
// created, read and deleted, and the filter is rebuilt all the while. Once the Write of
// a row has returned, or anybody has seen it, nobody is told that it is absent, neither
// by the filter nor by a null.
func TestRowsAndNullsOfManyCachesAreLinearizable(t *testing.T) {
	target := redistest.Pick(8_000, 500_000)
	s := redistest.Start(t)
	total, absent := 0, 0
	for total < target {
		history := recordSet(t, s.Addr(), redistest.Pick(3*time.Second, 10*time.Second), true)
		switch checkModel(set, history, time.Minute) {
		case porcupine.Illegal:
			t.Fatalf("not linearizable, after %d good operations", total)
		case porcupine.Unknown:
			t.Fatal("the check did not come to an end")
		}
		for _, o := range history {
			if !o.Write && o.Value == 0 {
				absent++
			}
		}
		total += len(history)
		s.Client(t).FlushAll(t.Context())
	}
	if absent == 0 {
		t.Error("nobody was told that a row is absent")
	}
	t.Logf("%d operations by %d caches in %d processes, in order; %d found nothing", total, processes*members, processes, absent)
}

// Without Confirm a no may lag behind an Add elsewhere, as is documented. If the check
// could not tell, it would prove nothing.
func TestAFilterThatMayLagIsCaught(t *testing.T) {
	s := redistest.Start(t)
	for range 20 {
		history := recordSet(t, s.Addr(), 500*time.Millisecond, false)
		if checkModel(set, history, time.Second) == porcupine.Illegal {
			return
		}
		s.Client(t).FlushAll(t.Context())
	}
	t.Error("20 histories without a fault found")
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

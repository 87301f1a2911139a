package linear

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// An op is one read or write of a key, with the times at which it was called and
// at which it returned.
type op struct {
	Client, Key, Value int64
	Call, Return       int64
	Write              bool

	// Since is from when on what a read gives may have been true: Call, or earlier for what
	// may lag. Only histories of a set have it.
	Since int64
}

// register is the model of one key: a register whose versions are written in order.
var register = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, _ any) (bool, any) {
		o := input.(op)
		if o.Write {
			return state.(int64) == o.Value-1, o.Value
		}
		return state.(int64) == o.Value, state
	},
	DescribeOperation: func(input, _ any) string {
		o := input.(op)
		if o.Write {
			return fmt.Sprintf("write %d: %d", o.Key, o.Value)
		}
		return fmt.Sprintf("read %d: %d", o.Key, o.Value)
	},
}

// check looks for an order of each key's reads and writes into which they all fit.
// To rule one out can take long, the longer the worse the history is: so each key
// has its time, and one without an order decides for all.
func check(history []op, perKey time.Duration) porcupine.CheckResult {
	return checkModel(register, history, perKey)
}

func checkModel(model porcupine.Model, history []op, perKey time.Duration) porcupine.CheckResult {
	switch v := judge(model, history, perKey); {
	case v[porcupine.Illegal] > 0:
		return porcupine.Illegal
	case v[porcupine.Unknown] > 0:
		return porcupine.Unknown
	}
	return porcupine.Ok
}

// verdicts are how many keys have an order, have none, or have kept that to themselves for
// the time that there was.
type verdicts map[porcupine.CheckResult]int

// judge gives the verdicts on the keys of a history, up to the first that has no order.
func judge(model porcupine.Model, history []op, perKey time.Duration) verdicts {
	byKey := map[int64][]porcupine.Operation{}
	for _, o := range history {
		byKey[o.Key] = append(byKey[o.Key], porcupine.Operation{ClientId: int(o.Client), Input: o, Call: o.Call, Return: o.Return})
	}
	v := verdicts{}
	for _, operations := range byKey {
		verdict := porcupine.CheckOperationsTimeout(model, operations, perKey)
		v[verdict]++
		if verdict == porcupine.Illegal {
			break
		}
	}
	return v
}

// ordered is the part of a history of a kind whose keys have one order. Keys that a local tier
// answers for have none: before a write has returned, a slow read of the old version may fill the
// tier after the new one has. No read of theirs is stale all the same.
func ordered(kind string, history []op) []op {
	if kind != "tags" {
		return history
	}
	return slices.DeleteFunc(slices.Clone(history), func(o op) bool {
		return hasLocalTier(int(o.Client) / (subjects * callers))
	})
}

func linearizable(t *testing.T, history []op) bool {
	t.Helper()
	result := check(history, time.Minute)
	if result == porcupine.Unknown {
		t.Fatal("the check did not come to an end")
	}
	return result == porcupine.Ok
}

// stale returns the reads that gave a version older than that of a write which had
// returned before they were called.
func stale(history []op) (found []op) {
	byKey := map[int64][]op{} // writes
	for _, o := range history {
		if o.Write {
			byKey[o.Key] = append(byKey[o.Key], o)
		}
	}
	for _, writes := range byKey {
		slices.SortFunc(writes, func(a, b op) int { return int(a.Return - b.Return) })
		for i := 1; i < len(writes); i++ { // each has the highest version so far
			writes[i].Value = max(writes[i].Value, writes[i-1].Value)
		}
	}
	for _, o := range history {
		if o.Write {
			continue
		}
		writes := byKey[o.Key]
		n, _ := slices.BinarySearchFunc(writes, o.Call, func(w op, call int64) int { return int(w.Return - call) })
		if n > 0 && o.Value < writes[n-1].Value {
			found = append(found, o)
		}
	}
	return found
}

func writeHistory(path string, history []op) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	buffer := bufio.NewWriter(file)
	if err := binary.Write(buffer, binary.LittleEndian, history); err != nil {
		return err
	}
	return buffer.Flush()
}

func readHistory(t *testing.T, path string) (history []op) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for in := bufio.NewReader(file); ; {
		var o op
		switch err := binary.Read(in, binary.LittleEndian, &o); {
		case errors.Is(err, io.EOF):
			return history
		case err != nil:
			t.Fatal(err)
		}
		history = append(history, o)
	}
}

// The checkers themselves have to tell good histories from bad ones.
func TestTheCheckersKnowAGoodHistory(t *testing.T) {
	good := []op{
		{Client: 1, Key: 7, Write: true, Value: 1, Call: 10, Return: 20},
		{Client: 2, Key: 7, Value: 0, Call: 5, Return: 15},
		{Client: 2, Key: 7, Value: 1, Call: 21, Return: 22},
		{Client: 2, Key: 8, Value: 0, Call: 23, Return: 24},
	}
	if !linearizable(t, good) || len(stale(good)) > 0 {
		t.Error("a read beside the write may see either version")
	}
	for name, bad := range map[string][]op{
		"a read after the write sees what was before": {{Client: 3, Key: 7, Value: 0, Call: 23, Return: 24}},
		"a read sees what nobody wrote":               {{Client: 3, Key: 7, Value: 2, Call: 23, Return: 24}},
		"the new and then the old, beside the write": {
			{Client: 3, Key: 7, Value: 1, Call: 11, Return: 12},
			{Client: 3, Key: 7, Value: 0, Call: 13, Return: 14},
		},
		"versions out of order": {
			{Client: 3, Key: 7, Write: true, Value: 3, Call: 31, Return: 32},
			{Client: 3, Key: 7, Write: true, Value: 2, Call: 33, Return: 34},
		},
	} {
		if linearizable(t, append(slices.Clone(good), bad...)) {
			t.Error(name)
		}
	}
	if n := len(stale(append(good, op{Client: 3, Key: 7, Value: 0, Call: 23, Return: 24}))); n != 1 {
		t.Errorf("%d stale reads, want 1", n)
	}
}

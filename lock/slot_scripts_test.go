package lock

import (
	"fmt"
	"strings"
	"testing"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

// What acquire.lua and release.lua answer with the record alone, which is all that they have
// while a slot moves: for a lock that nobody waits for, as with all keys, also when a command
// comes twice; for any other TRYAGAIN.
func TestTheRecordAloneIsEnoughWhereNobodyWaits(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	lock := newTarget("", keys.Mutex, "a", exclusive)
	run := func(script *redisconn.Script, alone bool, args ...any) (words []string, text string) {
		call := lock.call(args...)
		if alone {
			call = recordOnly(call)
		}
		reply, err := script.Run(t.Context(), rdb, call).Result()
		if err != nil {
			return []string{"", "", ""}, err.Error()
		}
		text = strings.Trim(fmt.Sprint(reply), "[]")
		return append(strings.Fields(text), "", ""), text
	}
	acquire := func(alone bool, owner, entry string) ([]string, string) {
		return run(acquireScript, alone, "m", 1, keys.LockChannels, "p", entry, 0, "", 60_000, "", owner)
	}
	release := func(owner string, granted []string) string {
		_, text := run(releaseScript, true, "m", 1, keys.LockChannels, owner, granted[1], granted[2], false, 0)
		return text
	}
	expect := func(what, got, want string) {
		t.Helper()
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	first, text := acquire(true, "1", "")
	expect("a new lock", text, "granted")
	_, again := acquire(true, "1", "")
	expect("the same again", again, text)
	expect("release", release("1", first), "ok")
	expect("the same again", release("1", first), "again")
	_, text = acquire(true, "1", "")
	expect("a late copy", text, "gone")
	second, text := acquire(true, "2", "")
	expect("a free lock", text, "granted")
	if second[1] <= first[1] {
		t.Errorf("fence %s after %s", second[1], first[1])
	}
	expect("release of an old holder", release("1", first), "past")
	_, text = acquire(true, "3", "m:p:1")
	expect("a waiter", text, "TRYAGAIN")
	_, text = acquire(false, "3", "m:p:1")
	expect("a waiter, with all keys", text, "busy")
	expect("release where somebody waits", release("2", second), "TRYAGAIN")
	EveryKeyEnds(t, rdb)
}

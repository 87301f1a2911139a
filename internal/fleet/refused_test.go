package fleet_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/fleet"
)

// A message only tells of a change that is made already. If the server refuses it, as to each
// new user of Redis 7 and later, the caller is told what has been done all the same.
func TestANotificationThatIsRefusedUndoesNothing(t *testing.T) {
	t.Parallel()
	r := onServer(t)
	r.must(r.rdb.Do(r.ctx, "ACL", "SETUSER", "mute", "on", ">x", "resetchannels", "~*", "+@all").Err())
	mute := r.server.Client(t, func(o *redis.Options) { o.Username, o.Password = "mute", "x" })
	g := r.with(mute, fleet.Keyspace{})
	gone := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if n := r.rdb.Exists(r.ctx, valueKey("1")).Val(); n != 0 {
			t.Errorf("%s: the value is still there", what)
		}
	}
	r.must(set(r.ctx, g, "1", "set"))
	r.finds(g, "1", "set")
	gone("Invalidate", g.Invalidate(r.ctx, "1"))
	r.publishes(g, "1", "published")
	end, err := g.Hold(r.ctx, 0, "1")
	gone("Hold", err)
	gone("the end of a hold", end(r.ctx, true))
	r.lay("1", "a value that has no mark")
	gone("Expire", g.Expire(r.ctx, time.Minute, "1"))
	claimed := g.Claim(r.ctx, "1")[0]
	if out := g.Replace(r.ctx, publication(claimed.Lease, "replaced"))[0]; !out.Published || out.Err != nil {
		t.Errorf("Replace: %+v", out)
	}
	r.finds(g, "1", "replaced")
	r.must(g.Clear(r.ctx))
	r.must(g.ClearTags(r.ctx, 1))

	// One that somebody waits for.
	gone("Invalidate", g.Invalidate(r.ctx, "1"))
	first, second := g.Begin(r.ctx, fleet.Ask{ID: "1"})[0], g.Begin(r.ctx, fleet.Ask{ID: "1"})[0]
	if first.Verdict != fleet.Granted || second.Verdict == fleet.Granted {
		t.Fatalf("two ask for a lease: %+v, %+v", first, second)
	}
	if out := g.Commit(context.WithoutCancel(r.ctx), publication(first.Lease, "awaited"))[0]; !out.Published || out.Err != nil {
		t.Errorf("Commit: %+v", out)
	}
	if s := g.Stats(); s.Refused+s.Unknown != 0 {
		t.Errorf("not all went well: %+v", s)
	}
}

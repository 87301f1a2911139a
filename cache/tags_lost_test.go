package cache_test

import (
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// Redis has evicted the record of the clears and kept the values. A process that knows the clears puts
// the record back, with the time from which on it knows all of them.
func TestClearedTagsThatRedisHasLostArePutBack(t *testing.T) {
	putsAClearBack(t, func(r *rig, _ map[string]string, _ *rows) { r.rdb.Del(r.ctx, clearsKey()) })
}

// A new primary lacks the last clear of its predecessor. Another process, which started since, clears
// another tag before the process that knows the lost clear looks: the latest clear in Redis is a
// later one then. Catches a process that takes this as a sign that nothing is lost.
func TestAClearThatAFailoverHasLostIsPutBackThoughOthersFollowed(t *testing.T) {
	putsAClearBack(t, func(r *rig, before map[string]string, source *rows) {
		r.rdb.Del(r.ctx, clearsKey())
		r.rdb.HSet(r.ctx, clearsKey(), before)
		other := open(r, source.tagged())
		if err := other.ClearTags(r.ctx, tenant(7)); err != nil {
			r.Fatal(err)
		}
	})
}

// putsAClearBack fails unless a process puts back the clear of a tag that Redis loses. before is the
// record of Redis from before the clear.
func putsAClearBack(t *testing.T, lose func(r *rig, before map[string]string, source *rows)) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
		source := newRows(r, 1, 11)
		first := open(r, source.tagged())
		first.gives(r, 1, "v1")
		first.gives(r, 11, "v1")
		stale := r.rdb.Get(r.ctx, valueKey(1)).Val()
		before := r.rdb.HGetAll(r.ctx, clearsKey()).Val()
		if err := first.ClearTags(r.ctx, tenant(0)); err != nil {
			r.Fatal(err)
		}
		source.put(1, "v2")
		source.put(11, "v2")
		lose(r, before, source)
		time.Sleep(31 * time.Second)
		r.rdb.Set(r.ctx, valueKey(1), stale, time.Hour)
		later := open(r, source.tagged())
		later.gives(r, 1, "v2")
		later.gives(r, 11, "v1") // its tag was not cleared
	})
}

// No process knows the clears any more. A tagged value from before counts no longer, since its tag may
// have been cleared; one without tags does. Catches a process that makes an empty record and trusts it.
func TestWithoutTheClearedTagsNoTaggedValueIsTrusted(t *testing.T) {
	for name, lose := range map[string]func(r *rig){
		"the key is gone":      func(r *rig) { r.rdb.Del(r.ctx, clearsKey()) },
		"its floor is gone":    func(r *rig) { r.rdb.HDel(r.ctx, clearsKey(), "f") },
		"it was written over":  func(r *rig) { r.rdb.HSet(r.ctx, clearsKey(), "f", "what?") },
		"a process clears too": func(r *rig) { r.rdb.Del(r.ctx, clearsKey()) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
				source := newRows(r, 1, 2)
				src := source.tagged()
				src.Tags = func(key int64, _ string) []string { return []string{"a"}[:key%2] }
				first := open(r, src)
				first.gives(r, 1, "v1")
				first.gives(r, 2, "v1")
				stale := r.rdb.Get(r.ctx, valueKey(1)).Val()
				if err := first.ClearTags(r.ctx, "a"); err != nil {
					r.Fatal(err)
				}
				_ = first.Close()
				source.put(1, "v2")
				source.put(2, "v2")
				time.Sleep(time.Millisecond) // the server's clock counts microseconds
				lose(r)
				r.rdb.Set(r.ctx, valueKey(1), stale, time.Hour)
				later := open(r, src)
				if strings.Contains(name, "too") {
					if err := later.ClearTags(r.ctx, "b"); err != nil {
						r.Fatal(err)
					}
				}
				later.gives(r, 1, "v2")
				later.gives(r, 2, "v1")
			})
		})
	}
}

// A process that may have missed clears cannot put back the whole record that Redis has lost: it writes
// that nothing from before is known. Catches a process that vouches for more than it has heard of.
func TestWhoIsDeafDoesNotVouchForTheClearedTags(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real"})
	r.deaf, r.patient = true, true
	p := redistest.Proxy(t, server.Addr())
	source := newRows(r, 1)
	deaf, c := openOn(r, p.Client(t), source.tagged()), open(r, source.tagged())
	deaf.gives(r, 1, "v1")
	stale := r.rdb.Get(r.ctx, valueKey(1)).Val()
	r.eventually("messages arrive", func() bool { return deaf.Stats().Live })
	p.DropMessages(true)
	r.eventually("it notices", func() bool { return !deaf.Stats().Live })
	held, release := p.HoldReply("EVALSHA") // its next look
	<-held
	source.put(1, "v2")
	if err := c.ClearTags(r.ctx, tenant(0)); err != nil {
		r.Fatal(err)
	}
	_ = c.Close()
	r.rdb.Del(r.ctx, clearsKey())
	r.rdb.Set(r.ctx, valueKey(1), stale, time.Hour)
	release()
	r.eventually("there is a record again", func() bool { return r.rdb.Exists(r.ctx, clearsKey()).Val() == 1 })
	later := open(r, source.tagged())
	later.gives(r, 1, "v2")
}

// A process hears that a tag was cleared, and Redis loses the record before the process has read when.
// The process that cleared the tag is gone, so nobody can say that all clears are known. Catches a
// process that puts back the clears that it knows, and vouches for them.
func TestWhoCannotReadAClearThatItHasHeardOfDoesNotVouchForTheOthers(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
		source := newRows(r, 1)
		c := open(r, source.tagged())
		if err := c.ClearTags(r.ctx, tenant(0)); err != nil {
			r.Fatal(err)
		}
		var counter string
		for field := range r.rdb.HGetAll(r.ctx, clearsKey()).Val() {
			if !strings.Contains("cfl", field) {
				counter = field
			}
		}
		c.gives(r, 1, "v1")
		stale := r.rdb.Get(r.ctx, valueKey(1)).Val()
		source.put(1, "v2")
		time.Sleep(time.Millisecond) // the server's clock counts microseconds
		r.rdb.Del(r.ctx, clearsKey())
		r.rdb.Publish(r.ctx, keys.OfCache("test").Messages(), "c"+strings.Repeat("X", 26)+counter)
		time.Sleep(time.Second)
		c.gives(r, 1, "v2")
		r.rdb.Set(r.ctx, valueKey(1), stale, time.Hour)
		open(r, source.tagged()).gives(r, 1, "v2")
	})
}

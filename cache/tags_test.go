package cache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// tagged is a source whose row n is of the tenant n/10 and of everybody.
func (s *rows) tagged() cache.Source[int64, string] {
	src := s.source()
	src.Tags = func(key int64, _ string) []string { return []string{tenant(key / 10), "everybody"} }
	return src
}

func tenant(n int64) string { return fmt.Sprint("tenant:", n) }

// A ClearTags ends the values of a tag, at once in its own process and in others when the
// message has come, and no others; what is loaded afterwards is kept again.
//
// Catches a local hit or a value from Redis that is not asked for its tags, an epoch that is
// the last Clear's alone (nothing with the tag would count any more), and a ClearTags that ends everything.
func TestAClearOfATagEndsItsValuesAndNoOthers(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		keys := []int64{1, 2, 11, 12}
		source := newRows(r, keys...)
		c, other := open(r, source.tagged()), open(r, source.tagged())
		for _, p := range []*probe[int64, string]{c, other} {
			for _, key := range keys {
				p.gives(r, key, "v1")
			}
		}
		for round := range 3 {
			value := fmt.Sprint("v2", round)
			for _, key := range keys {
				source.put(key, value)
			}
			before := c.Stats()
			if err := c.ClearTags(r.ctx, tenant(0), "of nothing"); err != nil {
				r.Fatal(err)
			}
			c.gives(r, 1, value)
			if got, err := c.GetMany(r.ctx, []int64{1, 2, 11}); err != nil || got[1] != value || got[2] != value {
				r.Errorf("%v, %v", got, err)
			}
			if r.rdb == nil {
				if err := other.ClearTags(r.ctx, tenant(0)); err != nil { // without Redis they know nothing of each other
					r.Fatal(err)
				}
			}
			r.eventually("the other follows", func() bool { got, err := other.Get(r.ctx, 1); return err == nil && got == value })
			other.gives(r, 2, value)
			if r.kept() {
				c.gives(r, 11, "v1")
				c.gives(r, 12, "v1")
				c.comesFrom(r, 1, r.near())
				if loads := c.Stats().Loads - before.Loads; loads != 2 {
					r.Errorf("%d loads, want one of each value with the tag", loads)
				}
			}
		}
		if err := c.ClearTags(r.ctx); err != nil {
			r.Error(err)
		}
		c.gives(r, 1, "v22")
		if err := c.ClearTags(r.ctx, "everybody"); err != nil {
			r.Fatal(err)
		}
		c.gives(r, 11, "v22")
	})
}

// Clear and ClearTags count with one number, so one beside the other ends what it has to.
// Catches two numbers: the epoch of what was loaded after a ClearTags would be later than a Clear that
// it has not seen.
func TestAClearBesideClearsOfTags(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "real"}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1, 11)
		c := open(r, source.tagged())
		for round := range 20 {
			value := fmt.Sprint("v", round)
			source.put(1, value)
			source.put(11, value)
			var err error
			if tag := []string{tenant(0), "everybody", tenant(1), ""}[round%4]; tag == "" {
				err = c.Clear(r.ctx)
			} else {
				err = c.ClearTags(r.ctx, tag)
			}
			if err != nil {
				r.Fatal(err)
			}
			if round%4 != 2 {
				c.gives(r, 1, value)
			}
			if round%4 != 0 {
				c.gives(r, 11, value)
			}
		}
	})
}

// A process that starts later has heard no message, and knows nothing of the value that an
// older one left behind. Catches one that takes a tag which it does not know for one that was
// never cleared.
func TestAProcessThatStartsLaterKnowsWhichTagsWereCleared(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "real", local: true}}, func(r *rig) {
		source := newRows(r, 1, 11)
		first := open(r, source.tagged())
		first.gives(r, 1, "v1")
		first.gives(r, 11, "v1")
		source.put(1, "v2")
		source.put(11, "v2")
		if err := first.ClearTags(r.ctx, tenant(0)); err != nil {
			r.Fatal(err)
		}
		later := open(r, source.tagged())
		later.gives(r, 1, "v2")
		later.gives(r, 11, "v1")
	})
}

// Redis has thrown out what was cleared, values it has kept. A process that knows it puts it back,
// with the time from which on its knowledge is complete.
func TestClearedTagsThatRedisHasLostArePutBack(t *testing.T) {
	putsAClearBack(t, func(r *rig, _ map[string]string, _ *rows) { r.rdb.Del(r.ctx, clearsKey()) })
}

// putsAClearBack fails unless a process puts the clear of a tag back that Redis loses. before is what
// Redis has from before it.
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

// Nobody is left who knows what was cleared. No value with tags from before counts then: one of
// them may be of a tag that was. One without tags does. Catches a process that makes an empty
// record and trusts that.
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

// A process that no messages reach reads what was cleared, all that it has missed, as soon as
// they come again. Catches one that reads only what later messages name.
func TestAfterAGapAllClearedTagsAreRead(t *testing.T) {
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	r.deaf = true
	p := redistest.Proxy(t, server.Addr())
	source := newRows(r)
	for n := range int64(100) {
		source.put(10*n, "v1")
	}
	asleep, c := openOn(r, p.Client(t), source.tagged()), open(r, source.tagged())
	for n := range int64(100) {
		asleep.gives(r, 10*n, "v1")
	}
	r.eventually("messages arrive", func() bool { return asleep.Stats().Live })
	p.DropMessages(true)
	for n := range int64(100) {
		source.put(10*n, "v2")
		if err := c.ClearTags(r.ctx, tenant(n)); err != nil {
			r.Fatal(err)
		}
	}
	if err := asleep.ClearTags(r.ctx, "mine"); err != nil { // which it knows, and which is later than what it has missed
		r.Fatal(err)
	}
	r.eventually("it notices", func() bool { return !asleep.Stats().Live })
	p.DropMessages(false)
	r.eventually("messages arrive again", func() bool { return asleep.Stats().Live })
	for n := range int64(100) {
		asleep.gives(r, 10*n, "v2")
	}
}

// Who may have missed clears cannot put back the whole of what Redis has lost: what it does put back says that
// nothing from before is known. Catches a process that vouches for more than it has heard of.
func TestWhoIsDeafDoesNotVouchForTheClearedTags(t *testing.T) {
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	r.deaf = true
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

// A message names the counters that were cleared, and whoever hears it reads those. Catches
// one who reads all that were ever cleared: each clear would cost each process as much as there are tags.
func TestAClearOfATagIsReadByItself(t *testing.T) {
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	source := newRows(r, 1)
	c, other := open(r, source.tagged()), open(r, source.tagged())
	r.eventually("messages arrive", func() bool { return c.Stats().Live && other.Stats().Live })
	var tags []string
	for n := range int64(5000) {
		tags = append(tags, tenant(n))
	}
	if err := c.ClearTags(r.ctx, tags...); err != nil {
		r.Fatal(err)
	}
	other.gives(r, 1, "v1")
	before := server.Stat("total_net_output_bytes")
	for round := range 20 {
		value := fmt.Sprint("v", round)
		source.put(1, value)
		if err := c.ClearTags(r.ctx, tenant(0)); err != nil {
			r.Fatal(err)
		}
		r.eventually("the other follows", func() bool { got, err := other.Get(r.ctx, 1); return err == nil && got == value })
	}
	if sent := server.Stat("total_net_output_bytes") - before; sent > 200_000 {
		r.Errorf("%d bytes sent for 20 clears of a tag of 5,000; all of them are some 100,000", sent)
	}
}

// A ClearTags that Redis does not confirm is an error, and holds for this process all the
// same; it is confirmed later, for everybody.
func TestAClearOfATagThatIsNotConfirmedIsTriedAgain(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		source := newRows(r, 1, 11)
		c, other := open(r, source.tagged()), open(r, source.tagged())
		for _, p := range []*probe[int64, string]{c, other} {
			p.gives(r, 1, "v1")
			p.gives(r, 11, "v1")
		}
		source.put(1, "v2")
		source.put(11, "v2")
		m.SetError("LOADING")
		if err := c.ClearTags(r.ctx, tenant(0), "more"); !errors.Is(err, cache.ErrNotInvalidated) {
			r.Errorf("got %v", err)
		}
		c.gives(r, 1, "v2")
		m.SetError("")
		c.gives(r, 1, "v2")
		r.eventually("it is confirmed", func() bool { return c.Stats().Rebuild.Unconfirmed == 0 })
		c.gives(r, 1, "v2")
		r.eventually("the other follows", func() bool { v, err := other.Get(r.ctx, 1); return err == nil && v == "v2" })
		other.gives(r, 11, "v1")
		_ = c.Close()
		if err := c.ClearTags(r.ctx, "a"); !errors.Is(err, cache.ErrClosed) {
			r.Errorf("after Close: %v", err)
		}
	})
}

// The source is read from replicas that lag: what is loaded before they have caught up with
// one of several clears is kept nowhere, also if a later clear is of another tag. Values of other
// tags are kept. Catches an epoch just below the latest clear alone.
func TestAClearOfATagWaitsForTheReplicasOfTheSource(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
		const lag = 2 * time.Second
		source := newRows(r, 1, 11, 21)
		c := open(r, source.tagged(), func(o *cache.Options) { o.ReplicaLag = lag })
		time.Sleep(lag)
		c.gives(r, 1, "v1")
		for _, n := range []int64{0, 1} {
			if err := c.ClearTags(r.ctx, tenant(n)); err != nil {
				r.Fatal(err)
			}
			time.Sleep(lag / 4)
		}
		c.gives(r, 1, "v1") // from a replica that lags
		c.gives(r, 21, "v1")
		source.put(1, "v2")
		c.gives(r, 1, "v2")
		c.comesFrom(r, 21, cache.TierLocal)
		time.Sleep(lag)
		c.gives(r, 1, "v2")
		c.comesFrom(r, 1, cache.TierLocal)
	})
}

// A process learns of two clears at once, since the later one comes before it has read the earlier one.
// A row of the earlier tag that a lagging replica gives it is kept nowhere. Catches an epoch just below the
// later clear, which is later than the earlier one: the row stays for its whole life, everywhere.
func TestClearsLearnedTogetherWaitForTheReplicasOfTheSource(t *testing.T) {
	type process = *probe[int64, string]
	ofTag := func(n int64) func(r *rig, p process) {
		return func(r *rig, p process) { r.do(p.ClearTags(r.ctx, tenant(n))) }
	}
	all := func(r *rig, p process) { r.do(p.Clear(r.ctx)) }
	for name, test := range map[string]struct {
		first, then func(r *rig, p process)
		own         bool // the later clear is that of the process that learns of them
		lost        bool // and the record of them, before the first
	}{
		"two tags":         {first: ofTag(0), then: ofTag(1)},
		"its own tag":      {first: ofTag(0), then: ofTag(1), own: true},
		"all, then a tag":  {first: all, then: ofTag(1)},
		"in a new record":  {first: ofTag(0), then: func(*rig, process) {}, lost: true},
		"two of a new one": {first: ofTag(0), then: ofTag(1), lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
				const lag = 2 * time.Second
				source := newRows(r, 1)
				var meanwhile atomic.Pointer[func()]
				rdb := r.client()
				rdb.AddHook(redistest.EachCommand(func(cmd redis.Cmder) {
					if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && len(args) > 4 && args[4] == "look" {
						if do := meanwhile.Swap(nil); do != nil {
							(*do)()
						}
					}
				}))
				lagging := func(o *cache.Options) { o.ReplicaLag = lag }
				c, other := openOn(r, rdb, source.tagged(), lagging), open(r, source.tagged(), lagging)
				time.Sleep(2 * lag)
				c.gives(r, 1, "v1")
				who := other
				if test.own {
					who = c
				}
				do := func() { test.then(r, who) }
				meanwhile.Store(&do)
				if test.lost {
					r.do(r.rdb.Del(r.ctx, clearsKey()).Err())
				}
				test.first(r, other)
				time.Sleep(lag / 4)
				if meanwhile.Load() != nil {
					r.Fatal("the process has not read what was cleared")
				}
				c.gives(r, 1, "v1") // from a replica that lags
				source.put(1, "v2")
				c.gives(r, 1, "v2")
				time.Sleep(lag)
				c.gives(r, 1, "v2")
				other.gives(r, 1, "v2")
			})
		})
	}
}

// A process clears a tag before it has read anything, and makes the record with that. Catches one that
// takes such a record for one in which nothing was cleared.
func TestAClearThatMakesTheRecordWaitsForTheReplicasOfTheSource(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
		const lag = 2 * time.Second
		r.deaf = true
		source, cleared, rdb := newRows(r, 1), make(chan struct{}), r.client()
		rdb.AddHook(redistest.EachCommand(func(cmd redis.Cmder) {
			if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && len(args) > 4 && args[4] == "look" {
				<-cleared
			}
		}))
		c := openOn(r, rdb, source.tagged(), func(o *cache.Options) { o.ReplicaLag = lag })
		r.do(c.ClearTags(r.ctx, tenant(0)))
		close(cleared)
		c.gives(r, 1, "v1") // from a replica that lags
		source.put(1, "v2")
		c.gives(r, 1, "v2")
		time.Sleep(lag)
		c.gives(r, 1, "v2")
	})
}

// A transaction that changes the rows of a tenant clears its tag when it has ended, also if
// it failed or was found inside, and as part of another one with that.
func TestAWriteClearsTags(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "real", local: true}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1, 11)
		c := open(r, source.tagged())
		failed := errors.New("failed")
		inTx := func(value string, err error) func(context.Context) error {
			return func(context.Context) error {
				source.put(1, value)
				source.put(11, value)
				return err
			}
		}
		for name, write := range map[string]func(value string) error{
			"named": func(value string) error { return cache.Write(r.ctx, inTx(value, nil), c.Tagged(tenant(0))) },
			"beside its key": func(value string) error {
				return cache.Write(r.ctx, inTx(value, nil), c.Changes(11), c.Tagged(tenant(0)))
			},
			"failed": func(value string) error { return cache.Write(r.ctx, inTx(value, failed), c.Tagged(tenant(0))) },
			"found inside": func(value string) error {
				return cache.Write(r.ctx, func(ctx context.Context) error {
					return errors.Join(cache.Also(ctx, c.Tagged(tenant(0))), inTx(value, nil)(ctx))
				})
			},
			"within another": func(value string) error {
				return cache.Write(r.ctx, func(ctx context.Context) error {
					err := cache.Write(ctx, inTx(value+"!", nil), c.Tagged(tenant(0)))
					_, _ = c.Get(r.ctx, 1) // what it loads must end with the outer one
					source.put(1, value)
					return err
				})
			},
		} {
			for _, key := range []int64{1, 11} {
				if _, err := c.Get(r.ctx, key); err != nil {
					r.Fatal(err)
				}
			}
			if err := write(name); err != nil && !errors.Is(err, failed) {
				r.Fatalf("%s: %v", name, err)
			}
			c.gives(r, 1, name)
		}
	})
}

// However many values there are, a ClearTags is one command.
func TestAClearOfATagIsOneCommand(t *testing.T) {
	keys, tenants := redistest.Pick(20_000, 1_000_000), redistest.Pick(200, 10_000)
	server := start(t)
	r := onServer(t, server, cell{redis: "real"})
	tag := func(key int) string { return tenant(int64(key % tenants)) }
	source := cache.Source[int, string]{
		LoadMany: func(_ context.Context, keys []int) (map[int]string, error) {
			found := map[int]string{}
			for _, key := range keys {
				found[key] = "v1"
			}
			return found, nil
		},
		Tags: func(key int, _ string) []string { return []string{tag(key)} },
	}
	c := open(r, source, func(o *cache.Options) { o.RedisTimeout = 10 * time.Second })
	all := make([]int, keys)
	for i := range all {
		all[i] = i
	}
	for part := range slices.Chunk(all, 10_000) {
		if _, err := c.GetMany(r.ctx, part); err != nil {
			r.Fatal(err)
		}
	}
	r.eventually("messages arrive", func() bool { return c.Stats().Live })
	if err := c.ClearTags(r.ctx, "warm"); err != nil { // the server has the script
		r.Fatal(err)
	}
	before := server.Stat("total_commands_processed")
	began := time.Now()
	if err := c.ClearTags(r.ctx, tag(7)); err != nil {
		r.Fatal(err)
	}
	r.Logf("one tag of %d, of %d values, cleared in %v", tenants, keys, time.Since(began))
	// The script, the dozen commands in it, a heartbeat or two, and what this test asks.
	if sent := server.Stat("total_commands_processed") - before; sent > 20 {
		r.Errorf("%d commands", sent)
	}
	loads := c.Stats().Loads
	for _, key := range []int{7, 7 + tenants, 8} {
		if _, err := c.Get(r.ctx, key); err != nil {
			r.Fatal(err)
		}
	}
	if n := c.Stats().Loads - loads; n != 2 {
		r.Errorf("%d loads, want one for each value with the tag", n)
	}
}

// A value with more tags than there is room for could not be cleared by all of them, if it were
// stored. It stays in its process, which knows them all.
func TestAValueWithTooManyTagsStaysInItsProcess(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
		source := newRows(r, 1)
		src := source.source()
		src.Tags = func(int64, string) (tags []string) {
			for n := range int64(17) {
				tags = append(tags, tenant(n))
			}
			return tags
		}
		c := open(r, src)
		c.gives(r, 1, "v1")
		if n := r.rdb.Exists(r.ctx, valueKey(1)).Val(); n != 0 || c.Stats().Unpublished != 1 {
			r.Errorf("%d values stored, %d not", n, c.Stats().Unpublished)
		}
		c.comesFrom(r, 1, cache.TierLocal)
		source.put(1, "v2")
		if err := c.ClearTags(r.ctx, tenant(16)); err != nil {
			r.Fatal(err)
		}
		c.gives(r, 1, "v2")
	})
}

// A process may learn of its own ClearTags before it learns of an earlier one of another process. A value
// that it has compared with its tags in between ends with the earlier one all the same. Catches a mark that is
// the time of the latest clear: no later look would find the value's tags cleared.
func TestAnEarlierClearOfATagThatIsLearnedLateEndsItsValues(t *testing.T) {
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	p := redistest.Proxy(t, server.Addr())
	source := newRows(r, 1)
	c, other := openOn(r, p.Client(t), source.tagged()), open(r, source.tagged())
	c.gives(r, 1, "v1")
	held, release := p.HoldReply("EVALSHA") // of the look that follows the message
	source.put(1, "v2")
	if err := other.ClearTags(r.ctx, tenant(0)); err != nil {
		r.Fatal(err)
	}
	<-held
	if err := c.ClearTags(r.ctx, "mine"); err != nil {
		r.Fatal(err)
	}
	for range 2 {
		c.gives(r, 1, "v1")
	}
	release()
	r.eventually("it learns of the other's clear", func() bool { got, err := c.Get(r.ctx, 1); return err == nil && got == "v2" })
}

// A hit in the local tier allocates nothing, before and after clears of tags.
func TestALocalHitBesideClearsOfTagsAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	loads := 0
	c, err := cache.NewSource(nil, cache.Source[int64, string]{
		Load: func(context.Context, int64) (string, error) { loads++; return "v1", nil },
		Tags: func(int64, string) []string { return []string{"a", "b"} },
	}, cache.Options{Name: "product"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 {
		if n := testing.AllocsPerRun(1000, func() { _, _ = c.Get(t.Context(), 1) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
		if err := c.ClearTags(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
	}
	if loads != 1 {
		t.Errorf("%d loads", loads)
	}
}

// Tags that a loader gives with a value count beside those of Source.Tags, and stay with the value
// where the loader says that it has not changed.
func TestTagsThatALoaderGivesStayWithAnUnmodifiedValue(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		var bodies, unmodified atomic.Int64
		c := open(r, cache.Source[int64, string]{
			LoadEntry: func(_ context.Context, _ int64, e *cache.Entry[string]) (string, error) {
				if e.Prev != nil {
					unmodified.Add(1)
					return "", cache.ErrNotModified
				}
				bodies.Add(1)
				e.Tags, e.Version = []string{"a", "c"}, "1"
				return "v", nil
			},
			Tags: func(int64, string) []string { return []string{"b", "c"} },
		}, ttl(10*time.Minute), func(o *cache.Options) { o.StaleWhileRevalidate, o.EarlyRefresh = 3*time.Hour, -1 })
		for round, tag := range []string{"a", "b", "c"} {
			c.gives(r, 1, "v")
			time.Sleep(11 * time.Minute)
			c.gives(r, 1, "v") // and refreshes it
			r.eventually("it is refreshed", func() bool { return unmodified.Load() == int64(round)+1 })
			time.Sleep(time.Second)
			if err := c.ClearTags(r.ctx, "of another", tag); err != nil {
				r.Fatal(err)
			}
			if bodies.Load() != int64(round)+1 {
				r.Fatalf("%d bodies in round %d", bodies.Load(), round)
			}
		}
		c.gives(r, 1, "v")
		if bodies.Load() != 4 {
			r.Errorf("%d bodies, want one after each clear", bodies.Load())
		}
	})
}

// A server that takes over lacks the clear of a tag that was the last of its predecessor's, and before
// the process that knows it looks, another process, which began after that, clears another tag: then the
// latest clear that Redis knows is a later one. Catches a process that takes it for a sign that nothing is lost.
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

// A message tells that a tag was cleared, and Redis has lost the clears before this process has read
// when. The process that has cleared it is gone. Nobody can say then that all clears are known. Catches
// a process that puts back what it knows, and vouches for it.
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

// The loader of a page reads rows of another cache. A transaction changes the row, and both are
// cleared or invalidated when it has ended. The end for the rows takes longer than that for the page,
// which a reader asks for meanwhile: what that makes of the old row must not stay.
//
// Catches a page that is opened or cleared while the old row still answers.
func TestAWriteOfTagsEndsWhatIsMadeOfTheOldValuesMeanwhile(t *testing.T) {
	for name, of := range map[string]struct{ page, row bool }{ // whether it is named by its tag
		"the tag of the rows":  {row: true},
		"the tag of the pages": {page: true},
		"both by tags":         {page: true, row: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
				source := newRows(r, 1)
				var slow atomic.Bool
				process := func(hook redis.Hook) (pages, rows *probe[int64, string]) {
					rdb := r.client()
					if hook != nil {
						rdb.AddHook(hook)
					}
					rows = openOn(r, rdb, source.tagged(), func(o *cache.Options) { o.Name = "rows" })
					src := source.tagged()
					src.Load = func(ctx context.Context, key int64) (string, error) { return rows.Get(ctx, key) }
					return openOn(r, r.client(), src, func(o *cache.Options) { o.Name = "pages" }), rows
				}
				pages, _ := process(nil)
				ends := func(cmd redis.Cmder) {
					if args := cmd.Args(); slow.Load() && strings.HasPrefix(cmd.Name(), "eval") && strings.Contains(fmt.Sprint(args[3]), "{rows") {
						time.Sleep(50 * time.Millisecond)
						_, _ = pages.Get(r.ctx, 1)
					}
				}
				writtenPages, writtenRows := process(redistest.EachCommand(ends))
				pages.gives(r, 1, "v1")
				changes := []cache.Changes{writtenPages.Changes(1), writtenRows.Changes(1)}
				if of.page {
					changes[0] = writtenPages.Tagged(tenant(0))
				}
				if of.row {
					changes[1] = writtenRows.Tagged(tenant(0))
				}
				err := cache.Write(r.ctx, func(context.Context) error {
					source.put(1, "v2")
					slow.Store(true)
					return nil
				}, changes...)
				slow.Store(false)
				if err != nil {
					r.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				pages.gives(r, 1, "v2")
				open(r, cache.Source[int64, string]{Load: source.load}, func(o *cache.Options) { o.Name = "pages" }).gives(r, 1, "v2")
			})
		})
	}
}

// A value whose time in the local tier is over is kept for want of a better one. A ClearTags ends it as
// well. Catches one that answers in place of an error.
func TestAClearOfATagEndsWhatIsKeptForErrors(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1, 11)
		c := open(r, source.tagged(), ttl(time.Minute), func(o *cache.Options) { o.Local.TTL, o.StaleWhileRevalidate = time.Minute, -1 })
		c.gives(r, 1, "v1")
		c.gives(r, 11, "v1")
		if err := c.ClearTags(r.ctx, tenant(0)); err != nil {
			r.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if r.rdb != nil {
			r.rdb.Del(r.ctx, valueKey(1), valueKey(11))
		}
		source.slowly(func(context.Context, int64) error { return errBroken })
		if got, err := c.Get(r.ctx, 1); !errors.Is(err, errBroken) {
			r.Errorf("it gives %v, %v", got, err)
		}
		c.gives(r, 11, "v1") // its tag was not cleared
	})
}

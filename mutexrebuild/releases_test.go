package mutexrebuild_test

import (
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/mutexrebuild"
)

// A process of one release drops what those of the releases before and after have in
// Redis. With its own schema's values alone the others would go on to find old ones.
func TestWhatIsDroppedIsDroppedForTheNextSchemasToo(t *testing.T) {
	for name, write := range writes {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) {
				for schema := range 4 {
					var groups []*group
					for s := range 5 {
						groups = append(groups, r.group(opts{Schema: s}))
						r.want(groups[s], "x", "old", gives("old"))
					}
					r.must(write(r.ctx, groups[schema]))
					for s := range groups {
						stays := r.rdb.Get(r.ctx, keys.OfCache("p").Value(s, "x")).Val() == "old"
						if near := max(s-schema, schema-s) <= 1; stays == near {
							r.Errorf("a write with schema %d: that the value of schema %d stays is %v", schema, s, stays)
						}
					}
					r.must(r.rdb.FlushAll(r.ctx).Err())
				}
			})
		})
	}
}

// A load under way in a process of one release is not published when a process of the
// other has written meanwhile: all schemas of an id have one lease.
func TestAWriteOfAnotherReleaseEndsTheLease(t *testing.T) {
	everywhere(t, func(r *rig) {
		old, next := r.group(opts{Schema: 1}), r.group(opts{Schema: 2})
		db, at := newSource(), newGate()
		db.write("x", "old")
		var got string
		loading := r.do(old, "x", db.gated("x", at), &got)
		<-at.reached
		db.write("x", "new")
		r.must(next.Invalidate(r.ctx, "x"))
		close(at.open)
		loading.mustBe(r, nil)
		if got != "new" || db.loaded("x") != 2 {
			r.Errorf("got %q after %d loads", got, db.loaded("x"))
		}
	})
}

// Messages as earlier releases have sent them. A later release may not send others under
// this channel's name unless these here pass over them in silence.
func TestMessagesOfOtherReleasesAreUnderstoodOrIgnored(t *testing.T) {
	everywhere(t, func(r *rig) {
		var mu sync.Mutex
		var heard []string
		all := func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(heard) }
		g := r.listening(r.client(), opts{}, mutexrebuild.Messages{
			Invalidated: func(id string) { mu.Lock(); defer mu.Unlock(); heard = append(heard, id) },
		})
		r.eventually("the messages arrive", g.Live)
		for _, message := range []string{
			"wY5XXB4L7Q7BDUTHDQPGG4AEJ3S42",
			"iY5XXB4L7Q7BDUTHDQPGG4AEJ3S42",
			"iY5XXB4L7Q7BDUTHDQPGG4AEJ3Sa\x00{b}",
			"tY5XXB4L7Q7BDUTHDQPGG4AEJ3S3 1763800000123456 a kind of a later release",
			"iY5XXB4L7Q7BDUTHDQPGG4AEJ3S",
			"iY5XXB4L7Q7BDUTHDQPGG4AEJ3Sthe end",
		} {
			r.must(r.rdb.Publish(r.ctx, keys.OfCache("p").Messages(), message).Err())
		}
		r.eventually("the last message", func() bool { return slices.Contains(all(), "the end") })
		if got, want := all(), []string{"42", "a\x00{b}", "", "the end"}; !slices.Equal(got, want) {
			r.Errorf("heard %q, want %q", got, want)
		}
	})
}

// Those that are sent carry the id alone: a schema in them would be read as part of it.
func TestMessagesCarryTheIDAlone(t *testing.T) {
	r := onServer(t)
	sub := r.rdb.Subscribe(r.ctx, keys.OfCache("p").Messages())
	defer sub.Close()
	_, err := sub.Receive(r.ctx)
	r.must(err)
	r.must(r.group(opts{Schema: 7}).Invalidate(r.ctx, "43"))
	m, err := sub.ReceiveMessage(r.ctx)
	r.must(err)
	if !regexp.MustCompile(`^i[A-Z2-7]{26}43$`).MatchString(m.Payload) {
		r.Errorf("sent %q", m.Payload)
	}
}

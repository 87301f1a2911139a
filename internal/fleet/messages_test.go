package fleet_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/keys"
)

// A group reports the writes of other processes. It does not report its own: to handle
// them again would drop values that have been filled since.
func TestTheOwnerHearsOfOthersWrites(t *testing.T) {
	everywhere(t, func(r *rig) {
		var mu sync.Mutex
		var heard []string
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, what)
		}
		g := r.listening(r.client(), fleet.Messages{
			Invalidated: note,
			Missed:      func() { note("(missed)") },
			Live:        func(live bool) { note(fmt.Sprintf("(live %v)", live)) },
		})
		all := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(heard)
		}
		// Before the subscription stands, anything may have been missed.
		r.eventually("the link is live", func() bool { return slices.Contains(all(), "(live true)") })
		r.eventually("a gap", func() bool { return slices.Contains(all(), "(missed)") })
		if told := all(); slices.Index(told, "(live true)") < slices.Index(told, "(missed)") {
			r.Errorf("heard %q: a local tier is trusted before it is flushed", told)
		}
		time.Sleep(20 * time.Millisecond) // the channel may be subscribed twice at the start

		other := r.group(fleet.Keyspace{})
		namesake, err := fleet.New(r.client(), fleet.Keyspace{Name: "q"}, fleet.Options{}, fleet.Messages{})
		r.must(err)
		r.Cleanup(namesake.Close)
		mu.Lock()
		heard = nil
		mu.Unlock()

		// Whatever else is on the channel is not for us.
		for _, garbage := range []string{"", "i", "x", strings.Repeat("?", 26), "\x00\xff" + strings.Repeat("{", 1000)} {
			r.must(r.rdb.Publish(r.ctx, keys.OfCache("p").Messages(), garbage).Err())
		}
		r.must(g.Invalidate(r.ctx, "own"))
		r.must(set(r.ctx, g, "own", "v"))
		r.must(namesake.Invalidate(r.ctx, "of another name"))
		r.must(other.Invalidate(r.ctx, "a", "b"))
		r.must(set(r.ctx, other, "c", "v"))
		end, err := other.Hold(r.ctx, 0, "d")
		r.must(errors.Join(err, end(r.ctx, true)))
		r.publishes(other, "e", "v") // publishing is no news
		r.must(other.Invalidate(r.ctx, "the end"))
		r.eventually("the last message", func() bool { return slices.Contains(all(), "the end") })
		told := slices.DeleteFunc(all(), func(what string) bool { return strings.HasPrefix(what, "(") }) // the link may be late
		if got, want := told, []string{"a", "b", "c", "d", "d", "the end"}; !slices.Equal(got, want) {
			r.Errorf("heard %q, want %q", got, want)
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
		g := r.listening(r.client(), fleet.Messages{
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
	t.Parallel()
	r := onServer(t)
	sub := r.rdb.Subscribe(r.ctx, keys.OfCache("p").Messages())
	defer sub.Close()
	_, err := sub.Receive(r.ctx)
	r.must(err)
	r.must(r.group(fleet.Keyspace{Schema: 7}).Invalidate(r.ctx, "43"))
	m, err := sub.ReceiveMessage(r.ctx)
	r.must(err)
	if !regexp.MustCompile(`^i[A-Z2-7]{26}43$`).MatchString(m.Payload) {
		r.Errorf("sent %q", m.Payload)
	}
}

package mutexrebuild_test

import (
	"testing"

	"github.com/levee-go/levee/internal/keys"
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

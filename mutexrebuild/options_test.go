package mutexrebuild_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/mutexrebuild"
)

func TestOptionsThatMakeNoSenseAreNamed(t *testing.T) {
	for _, test := range []struct {
		o    opts
		want string // "": it is an option
	}{
		{opts{}, ""},
		{opts{Schema: -1}, "Schema"},
		{opts{Lease: -1}, "Lease"},
		{opts{Lease: 99 * time.Millisecond}, "Lease"},
		{opts{Lease: 100 * time.Millisecond}, ""},
		{opts{LoadTimeout: -1}, "LoadTimeout"},
		{opts{WaitBudget: -1}, "WaitBudget"},
		{opts{LoadTimeout: time.Hour, WaitBudget: time.Nanosecond}, ""},
		{opts{ErrorHold: -1}, ""},
		{opts{Hold: -1}, "Hold"},
		{opts{Hold: 999 * time.Microsecond}, "Hold"},
		{opts{Hold: time.Millisecond}, ""},
		{opts{ReplicaLag: -1}, "ReplicaLag"},
		{opts{ReplicaLag: time.Nanosecond}, "ReplicaLag"},
		{opts{ReplicaLag: time.Millisecond}, ""},
		{opts{WaitReplicas: -1}, "WaitReplicas"},
		{opts{RedisTimeout: -1}, "RedisTimeout"},
		{opts{MaxBytes: -1}, "MaxBytes"},
	} {
		g, err := newGroup(nil, test.o)
		switch {
		case err == nil && test.want == "":
			g.Close()
		case err == nil:
			t.Errorf("%+v is taken", test.o)
			g.Close()
		case test.want == "" || !strings.HasPrefix(err.Error(), "mutexrebuild: "+test.want+" must"):
			t.Errorf("%+v: %v", test.o, err)
		}
	}
}

func TestNamesAndClientsAreChecked(t *testing.T) {
	for _, name := range []string{"", " ", "a\n", ":", "a:b", "{a}", "a{", "}"} {
		space := mutexrebuild.Keyspace{Name: name}
		_, err := mutexrebuild.New(nil, space, mutexrebuild.Options{})
		if err == nil || !strings.HasPrefix(err.Error(), "mutexrebuild: Name must") {
			t.Errorf("the name %q: %v", name, err)
		}
	}
	for _, rdb := range []redis.UniversalClient{(*redis.Client)(nil), (*redis.ClusterClient)(nil), (*redis.Ring)(nil)} {
		if _, err := newGroup(rdb, opts{}); err == nil || !strings.Contains(err.Error(), "nil *redis.") {
			t.Errorf("a nil %T: %v", rdb, err)
		}
	}
}

func TestDefaultsAreAsDocumented(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.with(r.client(), opts{})
		redistest.Eventually(t, time.Minute, "live", g.Live)
		db, at := newSource(), newGate()
		loading := r.do(g, "x", db.gated("x", at), nil)
		<-at.reached
		if ttl := r.rdb.PTTL(r.ctx, leaseKey("x")).Val(); ttl != 3*time.Second {
			r.Errorf("a lease of %v", ttl)
		}
		began := time.Now()
		loading.mustBe(r, mutexrebuild.ErrLoadTimeout)
		if took := time.Since(began); took != 5*time.Second {
			r.Errorf("the load timed out after %v", took)
		}
		close(at.open)
		end, err := g.Hold(r.ctx, "x")
		r.must(err)
		if ttl := r.rdb.PTTL(r.ctx, leaseKey("x")).Val(); ttl != 30*time.Second {
			r.Errorf("a hold of %v", ttl)
		}
		r.must(end(r.ctx))
	})
}

package redistest

import (
	"testing"
	"time"
)

func TestSentinelsReplaceAMasterThatDies(t *testing.T) {
	t.Parallel()
	s := Sentinel(t)
	c, ctx := s.Client(t), t.Context()
	mustSet(t, c, "k", "v")
	if n := s.Master().Client(t).Wait(ctx, 1, 10*time.Second).Val(); n != 1 {
		t.Fatalf("%d replicas have the key", n)
	}
	old := s.KillMaster()
	now := s.Promoted(old)
	if now == old || old != s.Data[0] || now != s.Data[1] {
		t.Errorf("%s follows %s", now.Addr(), old.Addr())
	}
	Eventually(t, 20*time.Second, "the client finds the new master", func() bool {
		return c.Set(ctx, "k2", "v", 0).Err() == nil
	})
	if got := c.Get(ctx, "k").Val(); got != "v" {
		t.Errorf("got %q", got)
	}
	old.Restart()
	Eventually(t, 60*time.Second, "the old one comes back as the replica", func() bool {
		return old.info("replication")["role"] == "slave"
	})
}

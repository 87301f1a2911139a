package pgfeed

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
	"github.com/levee-go/levee/internal/dbtest"
	"github.com/levee-go/levee/internal/redistest"
)

// The primary is gone, and a standby is promoted that keeps the slots of the primary: the feed goes on from its
// position, and loses nothing. Without FAILOVER the standby has no slot, and the position is lost.
func TestAPositionOutlivesTheFailoverToAStandby(t *testing.T) {
	t.Parallel()
	if version := newRig(t).value("SELECT current_setting('server_version_num')::int"); version.(int32) < 170000 {
		t.Skipf("the slots of PostgreSQL %v are not copied to standbys", version)
	}
	primary, err := dbtest.Postgres()
	dbtest.Available(t, err)
	t.Cleanup(func() { primary.Kill(); _ = os.RemoveAll(primary.Dir) })
	r := &rig{t: t, s: primary, name: "postgres"}
	r.exec(product, "SELECT pg_create_physical_replication_slot('standby')", "ALTER SYSTEM SET synchronized_standby_slots = 'standby'", "SELECT pg_reload_conf()")
	standby, err := dbtest.PostgresStandby(primary)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Kill(); _ = os.RemoveAll(standby.Dir) })
	after := &rig{t: t, s: standby, name: "postgres"}
	for _, set := range []string{"primary_slot_name = 'standby'", "hot_standby_feedback = on", "sync_replication_slots = on"} {
		after.exec("ALTER SYSTEM SET " + set)
	}
	after.exec("ALTER SYSTEM RESET synchronized_standby_slots", "SELECT pg_reload_conf()") // it has no standby of its own

	f := r.feed(nil, Table{Name: "product"})
	w := r.open(f, feed.Position{})
	r.exec("INSERT INTO product VALUES (1, '', '')")
	w.Changes(1)
	n := 1
	redistest.Eventually(t, time.Minute, "the standby has a copy of the slot", func() bool { // which waits until the slot has come by
		n++
		r.exec(fmt.Sprintf("INSERT INTO product VALUES (%d, '', '')", n), "SELECT pg_log_standby_snapshot()")
		w.Changes(1)
		w.ConfirmAll()
		var synced bool
		after.on(after.url("postgres"), func(db *pgx.Conn) error {
			return db.QueryRow(context.Background(), "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE synced AND NOT temporary)").Scan(&synced)
		})
		return synced
	})
	w.End()
	r.exec("INSERT INTO product VALUES (1001, '', '')")
	at := r.value("SELECT pg_current_wal_flush_lsn()::text")
	redistest.Eventually(t, time.Minute, "the standby has it too", func() bool {
		return after.value(fmt.Sprintf("SELECT pg_last_wal_replay_lsn() >= '%v'::pg_lsn", at)) == true
	})
	primary.Kill()
	after.exec("SELECT pg_promote()", "INSERT INTO product VALUES (1002, '', '')")
	g := after.feed(func(o *Options) { o.Name, o.Slot, o.Publication = f.o.Name, f.o.Slot, f.o.Publication }, Table{Name: "product"})
	w = after.open(g, w.At)
	defer w.End()
	if got, want := feedtest.Summary(w.Changes(2)), "1 <nil> map[id:1001]; 1 <nil> map[id:1002]; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

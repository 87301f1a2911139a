package pgfeed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
	"github.com/levee-go/levee/cache/internal/pump"
	"github.com/levee-go/levee/internal/redistest"
)

const product = "CREATE TABLE product (id bigint PRIMARY KEY, slug text NOT NULL, name text)"

// What the package says to set up is enough, for a user who may do nothing else.
func TestTheSetUpOfThePackageDocIsEnough(t *testing.T) {
	t.Parallel()
	r := newRig(t, product)
	statements := feedtest.StatementsOfTheDoc(t, `(?m)^//\t((?:CREATE|ALTER) .*;)$`, 5)
	t.Cleanup(func() { r.admin("DROP ROLE levee") })
	source := r.feed(func(o *Options) { o.Name, o.URL = "shop", r.url("levee") }, Table{"public.product", []string{"id", "slug"}})
	r.exec(statements[:3]...)
	for _, more := range [][]string{nil, append([]string{"DROP PUBLICATION levee_shop"}, statements[3:]...)} {
		r.exec(more...)
		if more != nil { // and as the feed makes it itself
			source = r.feed(func(o *Options) { o.Name = "shop" }, Table{"public.product", []string{"id", "slug"}})
		}
		feedtest.TheSetUpIsEnough(t, source, "public.product", r.exec)
	}
}

func TestOnlyTheKeyIsLoggedOfAnOldRowByDefault(t *testing.T) {
	t.Parallel()
	r := newRig(t, product, "CREATE TABLE other (id int PRIMARY KEY)")
	w := r.open(r.feed(nil, Table{Name: "product"}), feed.Position{})
	r.exec("INSERT INTO product VALUES (1, 'a', 'A')", "INSERT INTO other VALUES (1)", "UPDATE product SET name = 'B'",
		"UPDATE product SET id = 2", "TRUNCATE product, other", "BEGIN; INSERT INTO product VALUES (9, 'x', ''); ROLLBACK")
	want := "1 <nil> map[id:1]; 2 <nil> map[id:1]; 2 map[id:1] map[id:2]; 4 <nil> <nil>; "
	if got := feedtest.Summary(w.Changes(4)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTypesBecomeTheKindsOfRow(t *testing.T) {
	r := newRig(t, "CREATE DOMAIN small AS int", "CREATE DOMAIN smaller AS small", "CREATE TYPE mood AS ENUM ('sad', 'glad')")
	t.Cleanup(func() { r.admin("ALTER ROLE postgres RESET ALL") })
	feedtest.TypesBecomeTheKindsOfRow(t, []feedtest.Kind{
		{Type: "smallint", Value: "-3", Want: int64(-3)},
		{Type: "int", Value: "7", Want: int64(7)},
		{Type: "bigint", Value: "9223372036854775807", Want: int64(1<<63 - 1)},
		{Type: "smaller", Value: "8", Want: int64(8)},
		{Type: "boolean", Value: "true", Want: true},
		{Type: "text", Value: "'å\n'", Want: "å\n"},
		{Type: "varchar(5)", Value: "'x'", Want: "x"},
		{Type: "mood", Value: "'glad'", Want: "glad"},
		{Type: "uuid", Value: "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", Want: "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
		{Type: "numeric(10,2)", Value: "1.5", Want: "1.50"},
		{Type: "double precision", Value: "0.1", Want: 0.1},
		{Type: "real", Value: "0.5", Want: 0.5},
		{Type: "bytea", Value: `'\x00ff'`, Want: []byte{0, 255}},
		{Type: "timestamptz", Value: "'2026-01-02 03:04:05.678901+02'", Want: time.Date(2026, 1, 2, 1, 4, 5, 678901000, time.UTC)},
		{Type: "timestamp", Value: "'2026-01-02 03:04:05'", Want: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		{Type: "timestamptz", Value: "'infinity'", Want: "infinity"},
		{Type: "date", Value: "'2026-01-02'", Want: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)},
		{Type: "jsonb", Value: `'{"a":1}'`, Want: `{"a": 1}`},
		{Type: "int[]", Value: "'{1,2}'", Want: "{1,2}"},
		{Type: "text", Value: "NULL", Want: nil},
	}, func(columns string, names []string) feed.Feed {
		r.exec("CREATE TABLE kinds ("+columns+")", "ALTER TABLE kinds REPLICA IDENTITY FULL",
			"ALTER ROLE postgres SET timezone = 'Asia/Tokyo'", "ALTER ROLE postgres SET bytea_output = 'escape'", "ALTER ROLE postgres SET datestyle = 'German'")
		return r.feed(nil, Table{"public.kinds", names})
	}, func(sql ...string) { r.exec(append([]string{"SET datestyle = 'ISO'"}, sql...)...) })
}

// A long value is stored apart, and is not logged anew when something else of its row changes.
func TestALongValueThatDidNotChangeIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, "CREATE TABLE page (id int PRIMARY KEY, path text NOT NULL, hits int)", "ALTER TABLE page ALTER path SET STORAGE EXTERNAL",
		"ALTER TABLE page REPLICA IDENTITY FULL")
	w := r.open(r.feed(nil, Table{"public.page", []string{"path"}}), feed.Position{})
	r.exec("INSERT INTO page VALUES (1, repeat('x', 10000), 0)", "UPDATE page SET hits = 1")
	path := strings.Repeat("x", 10000)
	for _, c := range w.Changes(2) {
		if c.New["path"] != path || c.Kind == feed.Updated && c.Old["path"] != path || c.Key != nil {
			t.Errorf("%v: %d and %d bytes, key %v", c.Kind, len(fmt.Sprint(c.Old["path"])), len(fmt.Sprint(c.New["path"])), c.Key)
		}
	}
}

func TestPartitionsAreToldAsTheirTable(t *testing.T) {
	t.Parallel()
	r := newRig(t, "CREATE TABLE event (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
		"CREATE TABLE event_a PARTITION OF event FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
		"CREATE TABLE event_b (day date NOT NULL, id int NOT NULL)", // other order of columns
		"ALTER TABLE event ATTACH PARTITION event_b FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')")
	w := r.open(r.feed(nil, Table{"public.event", []string{"id"}}), feed.Position{})
	r.exec("INSERT INTO event VALUES (1, '2026-01-05'), (2, '2026-02-05')", "UPDATE event SET day = '2026-02-06' WHERE id = 1", "TRUNCATE event")
	want := "1 <nil> map[id:1]; 1 <nil> map[id:2]; 3 map[id:1] <nil>; 1 <nil> map[id:1]; 4 <nil> <nil>; "
	if got := feedtest.Summary(w.Changes(5)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r.exec("ALTER TABLE event_b REPLICA IDENTITY FULL") // FULL and a list of columns: each update of event_b fails
	w.End()
	f := r.feed(nil, Table{"public.event", []string{"id"}})
	if _, err := f.Open(feedtest.Soon(t), w.At); !errors.Is(err, feed.ErrPositionLost) {
		t.Errorf("opened with a publication that had to be changed: %v", err)
	}
	w = r.open(f, feed.Position{})
	r.exec("INSERT INTO event VALUES (3, '2026-02-05')", "UPDATE event SET id = 4 WHERE id = 3")
	if got, want := feedtest.Summary(w.Changes(2)), "1 <nil> map[id:3]; 2 map[id:3] map[id:4]; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAStreamBeginsAfterThePositionOfOneBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t, product)
	f := r.feed(nil, Table{Name: "product"})
	first, w := feedtest.BeginsAfterAPosition(t, f, func(id int) { r.exec(fmt.Sprintf("INSERT INTO product VALUES (%d, '', '')", id)) })
	lsn, _, _ := strings.Cut(w.At.Text, " ")
	redistest.Eventually(t, 10*time.Second, "the server has heard of the position", func() bool {
		return r.value("SELECT confirmed_flush_lsn >= '"+lsn+"' FROM pg_replication_slots WHERE database = current_database()") == true
	})
	w.End()
	if s, err := f.Open(feedtest.Soon(t), first); !errors.Is(err, feed.ErrPositionLost) {
		t.Errorf("a position before one that was confirmed: %v, %v", s, err)
	}
	r.exec("INSERT INTO product VALUES (5, '', '')")
	w = r.open(f, feed.Position{}) // from now on, though the slot still has 5
	r.exec("INSERT INTO product VALUES (6, '', '')")
	if got, want := feedtest.Summary(w.Changes(1)), "1 <nil> map[id:6]; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The gate's connection is idle for five seconds at a time. The setting that keeps it may not
// be part of the connecting: PostgreSQL 13 refuses to connect with it, instead of being told that it is too old.
func TestAnIdleStreamKeepsItsConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t, product)
	r.exec("ALTER DATABASE " + r.name + " SET idle_session_timeout = '500ms'")
	f := r.feed(nil, Table{Name: "product"})
	if _, ok := f.config.RuntimeParams["idle_session_timeout"]; ok {
		t.Error("idle_session_timeout is sent at the connecting")
	}
	w := r.open(f, feed.Position{})
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	var err error
	for err == nil {
		_, err = w.Next(ctx)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the stream has ended: %v", err)
	}
}

func TestNextLeavesWithItsContextAndGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, product)
	w := r.open(r.feed(nil, Table{Name: "product"}), feed.Position{})
	w.Changes(0)
	for ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond); ; {
		defer cancel()
		if _, err := w.Next(ctx); err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			break
		}
	}
	r.exec("INSERT INTO product VALUES (1, '', '')")
	w.Changes(1)
	w.End()
	if _, err := w.Next(t.Context()); !errors.Is(err, pump.ErrClosed) {
		t.Errorf("Next of a closed stream: %v", err)
	}
	if err := w.Confirm(t.Context(), w.At); !errors.Is(err, pump.ErrClosed) {
		t.Errorf("Confirm of a closed stream: %v", err)
	}
}

// holdCommits makes commits wait after they are in the log, until release is called, as
// synchronous replication does with a standby that is slow.
func (r *rig) holdCommits() (release func()) {
	set := func(names string) {
		r.admin("ALTER SYSTEM SET synchronous_standby_names = '" + names + "'")
		r.admin("SELECT pg_reload_conf()")
		redistest.Eventually(r.t, 10*time.Second, "the setting is in force", func() bool {
			return r.value("SELECT current_setting('synchronous_standby_names')") == names
		})
	}
	set("nobody")
	release = sync.OnceFunc(func() { set("") })
	r.t.Cleanup(release)
	for held := false; !held; { // the server's checkpointer puts the setting in force, a moment later
		done := make(chan struct{})
		go func() {
			defer close(done)
			if db, err := pgx.Connect(context.Background(), r.url("postgres")); err == nil {
				_, _ = db.Exec(context.Background(), "SELECT pg_logical_emit_message(true, '', '')")
				_ = db.Close(context.Background())
			}
		}()
		for ended := false; !ended; {
			if r.held() > 0 {
				held = true
				r.admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			}
			select {
			case <-done:
				ended = true
			default:
			}
		}
	}
	return release
}

// held is how many commits wait.
func (r *rig) held() int64 {
	return r.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").(int64)
}

// execHeld begins a statement whose commit is held, and returns when it is.
func (r *rig) execHeld(sql string) (committed chan error) {
	committed = make(chan error, 1)
	go func() {
		db, err := pgx.Connect(context.Background(), r.url("postgres"))
		if err == nil {
			_, err = db.Exec(context.Background(), sql)
			_ = db.Close(context.Background())
		}
		committed <- err
	}()
	redistest.Eventually(r.t, 10*time.Second, "the commit waits", func() bool { return r.held() == 1 })
	return committed
}

// Without the gate the change is told at once, when whoever loads the row still finds the old one.
func TestATransactionIsToldWhenOthersSeeIt(t *testing.T) {
	r := newRig(t, product)
	w := r.open(r.feed(nil, Table{Name: "product"}), feed.Position{})
	w.Changes(0)
	release := r.holdCommits()
	committed := r.execHeld("INSERT INTO product VALUES (1, '', '')")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for {
		b, err := w.Next(ctx)
		if err != nil {
			break
		}
		if len(b.Changes) > 0 {
			t.Fatalf("told %v, and there are %v rows", b.Changes, r.value("SELECT count(*) FROM product"))
		}
	}
	release()
	w.Changes(1)
	if err := <-committed; err != nil {
		t.Error(err)
	}
	if n := r.value("SELECT count(*) FROM product"); n != int64(1) {
		t.Errorf("%v rows", n)
	}
}

// A stream that begins now does not tell what is in the log already, so Open waits until
// that is seen, however long a standby takes: without settle, the row appears after it has
// returned, and is not told.
func TestTheFirstOpenWaitsForWhatIsAlreadyInTheLog(t *testing.T) {
	r := newRig(t, product)
	f := r.feed(nil, Table{Name: "product"})
	r.open(f, feed.Position{}).End() // the making of a slot waits by itself
	release := r.holdCommits()
	committed := r.execHeld("INSERT INTO product VALUES (1, '', '')")
	go func() {
		time.Sleep(settleWait + 300*time.Millisecond)
		release()
	}()
	w := r.open(f, feed.Position{})
	if n := r.value("SELECT count(*) FROM product"); n != int64(1) {
		t.Errorf("Open has returned, and there are %v rows", n)
	}
	if err := <-committed; err != nil {
		t.Error(err)
	}
	w.End()
}

// The server sends its place while it tells a transaction, too. A follower that took that for
// a position would confirm a part.
func TestWithinATransactionThereIsNoPosition(t *testing.T) {
	s := &stream{Pump: pump.New(10, pump.Gate[uint32]{
		UntilVisible: func([]uint32) error { return nil },
		Watch:        func() error { return nil },
		Behind:       func(feed.Position) int64 { return -1 },
	})}
	s.Run()
	defer s.Stop()
	r := &reader{stream: s}
	if err := r.message(&pglogrepl.BeginMessage{Xid: 1}); err != nil {
		t.Fatal(err)
	}
	r.Add(feed.Change{Table: "product"})
	r.keepalive(pglogrepl.PrimaryKeepaliveMessage{ServerWALEnd: 100, ReplyRequested: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if b, err := s.Next(ctx); err == nil {
		t.Errorf("got %+v", b)
	}
	if err := r.message(&pglogrepl.CommitMessage{TransactionEndLSN: 200}); err != nil {
		t.Fatal(err)
	}
	if b, err := s.Next(feedtest.Soon(t)); err != nil || len(b.Changes) != 1 || b.Position.Order != 200 {
		t.Errorf("got %+v, %v", b, err)
	}
}

func TestWhatASnapshotDoesNotSeeIsUnderWay(t *testing.T) {
	const era = 1 << 32
	for text, want := range map[string]string{
		"5:9:": "[9 10]", "5:9:5,7": "[5 7 9 10]", fmt.Sprintf("%d:%d:%d", era+5, era+9, era+7): "[7 9 10]",
		"4000000000:4000000000:":            "[4294967295 5 7 9 10]",
		fmt.Sprintf("%d:%d:", era-3, era+6): "[7 9 10]", fmt.Sprintf("%d:%d:%d", era-3, era+100, uint64(era-1)): "[4294967295]",
	} {
		s, err := parseSnapshot(text)
		var unseen []uint32
		for _, xid := range []uint32{0, 4294967295, 5, 7, 9, 10} {
			if !s.sees(xid) {
				unseen = append(unseen, xid)
			}
		}
		if err != nil || fmt.Sprint(unseen) != want {
			t.Errorf("%s: %v, %v, want %s", text, unseen, err, want)
		}
	}
	for _, bad := range []string{"", "1:2", "1:x:", "::", "1:2:x"} {
		if _, err := parseSnapshot(bad); err == nil {
			t.Errorf("%q is a snapshot", bad)
		}
	}
}

package pgfeed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
	"github.com/levee-go/levee/internal/redistest"
)

// A counter is a connection of a writer that counts.
type counter struct{ *pgx.Conn }

func (c counter) Set(id int, n int64) error {
	_, err := c.Exec(context.Background(), "UPDATE counter SET n = $1 WHERE id = $2", n, id)
	return err
}

func (c counter) Close() error { return c.Conn.Close(context.Background()) }

func TestNothingIsLostWhenTheServerIsKilled(t *testing.T) {
	r := newRig(t, "CREATE TABLE counter (id int PRIMARY KEY, n bigint NOT NULL)", "INSERT INTO counter SELECT generate_series(1, 3), 0",
		"ALTER TABLE counter REPLICA IDENTITY FULL")
	feedtest.NothingIsLost(t, r.feed(nil, Table{"public.counter", []string{"id", "n"}}), func() (feedtest.Connection, error) {
		c, err := pgx.Connect(t.Context(), r.url("postgres"))
		return counter{c}, err
	}, func() { r.s.Restart(t) })
}

// A long transaction comes in parts, of which the last alone has a position, and does not
// gather in memory while its follower is busy.
func TestALongTransactionTakesLittleMemory(t *testing.T) {
	const rows = 50_000
	r := newRig(t, product)
	w := r.open(r.feed(nil, Table{Name: "product"}), feed.Position{})
	w.Changes(0)
	r.exec(fmt.Sprintf("INSERT INTO product SELECT i, i::text, '' FROM generate_series(1, %d) i", rows))
	next := func() feed.Batch {
		for {
			b, err := w.Next(feedtest.Soon(t))
			if err != nil {
				t.Fatal(err)
			}
			if len(b.Changes) > 0 {
				return b
			}
		}
	}
	got, before := len(next().Changes), heap()
	time.Sleep(300 * time.Millisecond) // the follower is busy
	if grown := heap() - before; grown > 8<<20 {
		t.Errorf("%d MiB for a transaction that nobody reads", grown>>20)
	}
	for got < rows {
		b := next()
		for i, c := range b.Changes {
			if c.New["id"] != int64(got+i+1) {
				t.Fatalf("%v after %d", c.New, got+i)
			}
		}
		got += len(b.Changes)
		if len(b.Changes) > 500 || b.Committed.IsZero() || got < rows && b.Position != (feed.Position{}) {
			t.Fatalf("a part of %d changes with position %v, committed %v", len(b.Changes), b.Position, b.Committed)
		}
		if b.Position != (feed.Position{}) {
			w.At = b.Position
		}
	}
	w.ConfirmAll()
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// While nothing happens to the tables, what happens beside them moves the slot all the same.
func TestTheSlotMovesWhileTheTablesAreIdle(t *testing.T) {
	r := newRig(t, product, "CREATE TABLE other (id int)")
	f := r.feed(nil, Table{Name: "product"})
	w := r.open(f, feed.Position{})
	w.Changes(0)
	r.exec("INSERT INTO other SELECT generate_series(1, 20000)")
	s, err := f.Stats(t.Context())
	if err != nil || s.Unconfirmed < 1<<20 || s.Retained < s.Unconfirmed || !s.Active || s.Status != "reserved" || s.Safe != -1 {
		t.Fatalf("%+v, %v", s, err)
	}
	redistest.Eventually(t, 20*time.Second, "the slot is near the end", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if b, err := w.Next(ctx); err == nil {
			w.At = b.Position
			w.ConfirmAll()
		}
		s, err := f.Stats(t.Context())
		return err == nil && s.Unconfirmed < 1<<16
	})
}

// A slot keeps what was not confirmed, however long its follower takes over it, and without a
// word of the follower's the server would hang up.
func TestAFollowerThatIsBusyKeepsItsConnection(t *testing.T) {
	r := newRig(t, product)
	f := r.feed(nil, Table{Name: "product"})
	f.patience = 1500 * time.Millisecond // a third of it is how often it sends a word
	w := r.open(f, feed.Position{})
	w.Changes(0)
	r.exec("INSERT INTO product SELECT i, '', '' FROM generate_series(1, 10000) i")
	w.Next(feedtest.Soon(t))
	time.Sleep(3 * f.patience)
	w.Changes(9000)
}

// A server that shuts down waits until the followers have confirmed the end of its log.
func TestTheServerShutsDownBesideAFollower(t *testing.T) {
	r := newRig(t, product)
	w := r.open(r.feed(nil, Table{Name: "product"}), feed.Position{})
	ended := make(chan error, 1)
	go func() {
		for {
			b, err := w.Next(feedtest.Soon(t))
			if err == nil && b.Position != (feed.Position{}) {
				err = w.Confirm(t.Context(), b.Position)
			}
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	r.exec("INSERT INTO product SELECT i, '', '' FROM generate_series(1, 1000) i")
	pidFile := filepath.Join(r.s.Dir, "data", "postmaster.pid")
	data, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	pid, _ := strconv.Atoi(line)
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil { // "fast"
		t.Fatal(err)
	}
	redistest.Eventually(t, 8*time.Second, "the server ends", func() bool {
		_, err := os.Stat(pidFile)
		return err != nil
	})
	if err := <-ended; errors.Is(err, feed.ErrPositionLost) {
		t.Error(err)
	}
	w.End()
	r.s.Restart(t)
}

func TestASlotThatIsInUseIsNamedWithItsUser(t *testing.T) {
	t.Parallel()
	r := newRig(t, product)
	w := r.open(r.feed(nil, Table{Name: "product"}), feed.Position{})
	w.Changes(0)
	second := r.feed(func(o *Options) { o.Name = "second"; o.Slot, o.Publication = "levee_"+r.name, "levee_"+r.name }, Table{Name: "product"})
	_, err := second.Open(feedtest.Soon(t), feed.Position{})
	feedtest.WantError(t, err, "levee_"+r.name, "in use", "process ", `"postgres"`, "levee feed "+r.name, "127.0.0.1")
	if err := second.Drop(t.Context()); err == nil {
		t.Error("a slot was dropped under its follower")
	}
	r.exec("INSERT INTO product VALUES (1, '', '')")
	w.Changes(1)
	w.End()
	if err := second.Drop(t.Context()); err != nil {
		t.Error(err)
	}
	if n := r.value("SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()) + (SELECT count(*) FROM pg_publication)"); n != int64(0) {
		t.Errorf("%v slots and publications are left", n)
	}
	if s, err := second.Stats(t.Context()); err != nil || s != (Stats{}) {
		t.Errorf("%+v, %v", s, err)
	}
}

// Check changes nothing, and does not mind that the feed is followed.
func TestCheckChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, product)
	f := r.feed(nil, Table{Name: "product"})
	made := func() any {
		return r.value("SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()) + (SELECT count(*) FROM pg_publication)")
	}
	if err := f.Check(t.Context()); err != nil || made() != int64(0) {
		t.Errorf("%v, %v are made", err, made())
	}
	w := r.open(f, feed.Position{})
	defer w.End()
	if err := f.Check(t.Context()); err != nil {
		t.Errorf("while it is followed: %v", err)
	}
	if err := r.feed(nil, Table{"product", []string{"id"}}).Check(t.Context()); err != nil {
		t.Errorf("with other options: %v", err)
	}
	r.exec("INSERT INTO product VALUES (1, '', '')")
	w.Changes(1)
}

func TestWhatIsNotSetUpIsNamedWithTheWayOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, product, "CREATE TABLE keyless (a int, b int)", "CREATE VIEW seen AS SELECT * FROM product",
		"CREATE UNLOGGED TABLE quick (id int PRIMARY KEY)", "CREATE TABLE made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",
		"CREATE TABLE parts (id int PRIMARY KEY, s text NOT NULL) PARTITION BY RANGE (id)", "CREATE TABLE part1 PARTITION OF parts DEFAULT",
		"ALTER TABLE parts REPLICA IDENTITY FULL",
		"CREATE TABLE loose (id int PRIMARY KEY) PARTITION BY RANGE (id)", "CREATE UNLOGGED TABLE loose1 PARTITION OF loose DEFAULT",
		"CREATE ROLE plain LOGIN", "CREATE ROLE reader LOGIN REPLICATION")
	t.Cleanup(func() { r.admin("DROP ROLE plain"); r.admin("DROP ROLE reader") })
	user := func(name string) func(*Options) { return func(o *Options) { o.URL = r.url(name) } }
	for _, c := range []struct {
		change func(*Options)
		table  Table
		want   []string
	}{
		{nil, Table{Name: "nothing"}, []string{"public.nothing", "does not exist"}},
		{nil, Table{"product", []string{"id", "sulg"}}, []string{"public.product", `"sulg"`, `["id" "name" "slug"]`}},
		{nil, Table{"product", []string{"slug"}}, []string{"public.product", `"slug"`, "ALTER TABLE product REPLICA IDENTITY FULL"}},
		{nil, Table{Name: "keyless"}, []string{"public.keyless", "no primary key", "Columns"}},
		{nil, Table{"keyless", []string{"a"}}, []string{"public.keyless", "REPLICA IDENTITY FULL"}},
		{nil, Table{Name: "seen"}, []string{"public.seen", "view"}},
		{nil, Table{Name: "quick"}, []string{"public.quick", "unlogged"}},
		{nil, Table{"made", []string{"twice"}}, []string{"public.made", `"twice" is generated`}},
		{nil, Table{Name: "loose"}, []string{"public.loose", "ALTER TABLE loose1 SET LOGGED"}},
		{nil, Table{"parts", []string{"s"}}, []string{"public.parts", "ALTER TABLE part1 REPLICA IDENTITY FULL"}},
		{user("reader"), Table{Name: "product"}, []string{`CREATE PUBLICATION "levee_` + r.name + `" FOR TABLE "public"."product" ("id") WITH`, "permission denied", "owner"}},
	} {
		feedtest.Refused(t, r.feed(c.change, c.table), c.want...)
	}
	feedtest.Refused(t, r.feed(nil, Table{"product", []string{"sulg"}}, Table{Name: "nothing"}), `"sulg"`, "public.nothing") // none is fit
	r.exec("CREATE PUBLICATION levee_" + r.name + " FOR TABLE product WITH (publish_via_partition_root = true)")
	feedtest.Refused(t, r.feed(user("plain"), Table{Name: "product"}), `ALTER ROLE "plain" REPLICATION`)
	feedtest.Refused(t, r.feed(user("nobody"), Table{Name: "product"}), "connecting", "nobody")
	r.admin("SELECT pg_create_physical_replication_slot('theirs')")
	defer r.admin("SELECT pg_drop_replication_slot('theirs')")
	feedtest.Refused(t, r.feed(func(o *Options) { o.Slot = "theirs" }, Table{Name: "product"}), "theirs", "physical", "Options.Slot")
	feedtest.WantError(t, r.feed(func(o *Options) { o.URL, o.Slot = r.url("plain"), "theirs" }, Table{"product", []string{"slug"}}).Check(feedtest.Soon(t)),
		"REPLICA IDENTITY FULL", `ALTER ROLE "plain" REPLICATION`, "Options.Slot") // all of it
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.feed(nil, Table{Name: "product"}).Open(ctx, feed.Position{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// With such names the server's commits may wait for the feed.
func TestAFeedIsNoSynchronousStandby(t *testing.T) {
	r := newRig(t, product)
	r.admin("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (*)'")
	defer func() { r.admin("ALTER SYSTEM RESET synchronous_standby_names"); r.admin("SELECT pg_reload_conf()") }()
	r.admin("SELECT pg_reload_conf()")
	redistest.Eventually(t, 10*time.Second, "the setting is refused", func() bool {
		_, err := r.feed(nil, Table{Name: "product"}).Open(feedtest.Soon(t), feed.Position{})
		return strings.Contains(fmt.Sprint(err), "synchronous_standby_names")
	})
}

func TestAServerWithoutALogicalLogIsRefused(t *testing.T) {
	r := newRig(t, product)
	r.s.Restart(t, "-c", "wal_level=replica")
	defer r.s.Restart(t)
	_, err := r.feed(nil, Table{Name: "product"}).Open(feedtest.Soon(t), feed.Position{})
	feedtest.WantError(t, err, "wal_level is replica", "ALTER SYSTEM SET wal_level = logical")
}

func TestWrongOptionsAreRefused(t *testing.T) {
	feedtest.WrongOptions(t, New, map[string]Options{
		"Name":      {URL: "postgres://x/y", Tables: []Table{{Name: "t"}}},
		"URL":       {Name: "a", Tables: []Table{{Name: "t"}}},
		"URL: ":     {Name: "a", URL: "postgres://x:secret@y:z/", Tables: []Table{{Name: "t"}}},
		"Tables":    {Name: "a", URL: "postgres://x/y"},
		"no name":   {Name: "a", URL: "postgres://x/y", Tables: []Table{{}}},
		"twice":     {Name: "a", URL: "postgres://x/y", Tables: []Table{{Name: "t"}, {Name: "public.t"}}},
		"Slot":      {Name: "a", URL: "postgres://x/y", Tables: []Table{{Name: "t"}}, Slot: "A b"},
		"Publicat":  {Name: "a", URL: "postgres://x/y", Tables: []Table{{Name: "t"}}, Publication: `a"b`},
		"Slot is":   {Name: strings.Repeat("a", 60), URL: "postgres://x/y", Tables: []Table{{Name: "t"}}},
		"MaxBatch ": {Name: "a", URL: "postgres://x/y", Tables: []Table{{Name: "t"}}, MaxBatch: -1},
	})
}

func TestAPositionIsLostWhenTheServerCannotGoOnFromIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, product)
	f := r.feed(nil, Table{Name: "product"})
	w := r.open(f, feed.Position{})
	r.exec("INSERT INTO product VALUES (1, '', '')")
	w.Changes(1)
	good := w.At
	w.End()
	lost := func(what string, p feed.Position) { t.Helper(); feedtest.Lost(t, f, what, p) }
	at, err := parsePosition(good)
	if err != nil {
		t.Fatal(err)
	}
	lost("another server", position{at.lsn, "12345", 1, at.publication}.public())
	lost("a time that is still to come", position{at.lsn + 1<<40, at.system, 1, at.publication}.public())
	lost("a timeline that this server did not go through", position{at.lsn, at.system, 1000, at.publication}.public())
	lost("another database's", feed.Position{Text: "mariadb 0-1-5", Order: 3})
	lost("spoiled", feed.Position{Text: good.Text + " ", Order: good.Order})
	w = r.open(f, good)
	r.exec("INSERT INTO product VALUES (9, '', '')")
	w.Changes(1)
	w.ConfirmAll()
	redistest.Eventually(t, 10*time.Second, "the server has the confirmation", func() bool {
		return r.value("SELECT confirmed_flush_lsn > '"+at.lsn.String()+"' FROM pg_replication_slots WHERE slot_name = 'levee_"+r.name+"'") == true
	})
	w.End()
	lost("before one that was confirmed: the server would begin there in silence", good)
	good = w.At

	r.exec("DROP PUBLICATION levee_" + r.name)
	r.exec("INSERT INTO product VALUES (2, '', '')")
	lost("what came before the publication was made anew", good)
	lost("and still", good) // it is there now, and the server cannot decode what came before it
	w = r.open(f, feed.Position{})
	r.exec("INSERT INTO product VALUES (3, '', '')")
	w.Changes(1)
	w.End()

	lacking := []string{"ALTER PUBLICATION levee_" + r.name + " DROP TABLE product", "INSERT INTO product VALUES (4, '', '')",
		"ALTER PUBLICATION levee_" + r.name + " ADD TABLE product (id)"}
	r.exec(lacking...) // by its owner, and nothing in the log says what it has kept away
	lost("what came while the publication lacked the table", w.At)
	w = r.open(f, feed.Position{})
	r.exec("DELETE FROM product")
	r.exec(lacking...)
	err = nil
	for ctx := feedtest.Soon(t); err == nil; {
		_, err = w.Next(ctx)
	}
	if !errors.Is(err, feed.ErrPositionLost) {
		t.Errorf("the same while it is followed: %v", err)
	}
	w.End()
	w = r.open(f, feed.Position{})
	r.exec("INSERT INTO product VALUES (5, '', '')")
	w.Changes(1)
	w.End()

	f = r.feed(nil, Table{Name: "product"}, Table{Name: "second"})
	r.exec("CREATE TABLE second (id int PRIMARY KEY)")
	lost("a new table's", w.At)
	lost("and still", w.At)
	w = r.open(f, feed.Position{})
	w.Changes(0)
	w.End()
	redistest.Eventually(t, 10*time.Second, "the slot is free", func() bool {
		return r.value("SELECT count(*) FROM pg_replication_slots WHERE active AND database = current_database()") == int64(0)
	})
	r.exec("SELECT pg_drop_replication_slot('levee_" + r.name + "')")
	lost("a slot that was dropped", w.At)
	r.open(f, feed.Position{}).End()
}

// What changes the old rows of the log, or which rows there are, while the feed is followed.
// Without the look at it, changes are dropped, and lag and errors say nothing.
func TestAStreamLosesItsPositionWhenATableIsNotWhatItWas(t *testing.T) {
	t.Parallel()
	const full = "ALTER TABLE product REPLICA IDENTITY FULL"
	parts := []string{"CREATE TABLE part (id int PRIMARY KEY, slug text NOT NULL) PARTITION BY RANGE (id)", "ALTER TABLE part REPLICA IDENTITY FULL",
		"CREATE TABLE part0 PARTITION OF part FOR VALUES FROM (0) TO (10)", "ALTER TABLE part0 REPLICA IDENTITY FULL"}
	for name, c := range map[string]struct {
		table string
		setUp []string
		do    []string
		want  string // of the next Open; "": it opens
	}{
		"another table takes its name": {"product", []string{product, full},
			[]string{"CREATE TABLE product_new (LIKE product INCLUDING ALL)", "ALTER TABLE product_new REPLICA IDENTITY FULL",
				"ALTER TABLE product RENAME TO product_old", "ALTER TABLE product_new RENAME TO product"}, ""},
		"an identity": {"product", []string{product, full}, []string{"ALTER TABLE product REPLICA IDENTITY DEFAULT"}, `does not have column "slug"`},
		"an identity, for a moment": {"product", []string{product, full, "INSERT INTO product VALUES (1, 'a', '')"},
			[]string{"ALTER TABLE product REPLICA IDENTITY DEFAULT", "UPDATE product SET slug = 'b'", full}, ""},
		"a partition": {"part", parts, []string{"CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (10) TO (20)"}, "REPLICA IDENTITY of part1"},
		"a row of a partition is deleted": {"part", parts,
			[]string{"CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (10) TO (20)", "INSERT INTO part VALUES (15, 'a')", "DELETE FROM part",
				"ALTER TABLE part1 REPLICA IDENTITY FULL"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.setUp...)
			r.exec("CREATE PUBLICATION levee_" + r.name + " FOR TABLE " + c.table + " WITH (publish_via_partition_root = true)")
			f := r.feed(nil, Table{c.table, []string{"id", "slug"}})
			w := r.open(f, feed.Position{})
			w.Changes(0)
			r.exec(c.do...)
			err := error(nil)
			for ctx := feedtest.Soon(t); err == nil; {
				var b feed.Batch
				b, err = w.Next(ctx)
				for _, c := range b.Changes {
					if c.Old != nil && (c.Old["id"] == nil || c.Old["slug"] == nil) {
						t.Errorf("an old row is %v", c.Old)
					}
				}
			}
			if !errors.Is(err, feed.ErrPositionLost) {
				t.Fatal(err)
			}
			w.End()
			if c.want != "" {
				_, err := f.Open(feedtest.Soon(t), feed.Position{})
				feedtest.WantError(t, err, c.want)
				return
			}
			w = r.open(f, feed.Position{})
			r.exec("INSERT INTO "+c.table+" (id, slug) VALUES (5, 'a')", "UPDATE "+c.table+" SET slug = 'b' WHERE id = 5")
			if got, want := feedtest.Summary(w.Changes(2)), "1 <nil> map[id:5 slug:a]; 2 map[id:5 slug:a] map[id:5 slug:b]; "; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// A partition that is like the others clears nothing.
func TestANewPartitionLosesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, "CREATE TABLE event (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
		"CREATE TABLE event_a PARTITION OF event FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')")
	f := r.feed(nil, Table{"event", []string{"id"}})
	w := r.open(f, feed.Position{})
	w.Changes(0)
	r.exec("CREATE TABLE event_b PARTITION OF event FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')", "INSERT INTO event VALUES (1, '2026-02-05')")
	w.Changes(1)
	w.End()
	r.open(f, w.At).End()
}

// The stream is idle, and its connection for questions dies. Catches a stream that goes on
// without: nothing would show that the publication has lost a table.
func TestAStreamThatCannotAskEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, product)
	w := r.open(r.feed(nil, Table{Name: "product"}), feed.Position{})
	w.Changes(0)
	r.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()")
	ctx := feedtest.Soon(t)
	var err error
	for err == nil {
		_, err = w.Next(ctx)
	}
	if ctx.Err() != nil || errors.Is(err, feed.ErrPositionLost) {
		t.Errorf("got %v, want that it cannot ask", err)
	}
	w.End()
}

// A server that has the question and does not answer, as over a link that drops packets. Without
// a limit Open waits with its caller's ctx, which has none.
func TestAnAnswerThatDoesNotComeIsAnError(t *testing.T) {
	t.Parallel()
	r := newRig(t, product)
	f := r.feed(nil, Table{Name: "product"})
	f.silence = 300 * time.Millisecond
	r.on(r.url("postgres"), func(db *pgx.Conn) error {
		tx, err := db.Begin(t.Context())
		if err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), "LOCK TABLE pg_publication IN ACCESS EXCLUSIVE MODE"); err != nil {
			return err
		}
		ctx := feedtest.Soon(t)
		if _, err := f.Open(ctx, feed.Position{}); err == nil || ctx.Err() != nil {
			t.Errorf("Open waits for ever: %v", err)
		}
		return tx.Rollback(t.Context())
	})
	f.silence = silence
	r.open(f, feed.Position{}).End()
}

// The connection of the log lives, and the one for questions gets no answer: its process stands still, or a firewall
// has forgotten it.
//
// Defect: the stream waits for the answer until the system gives the connection up, after 15 minutes or never, and no
// other process may follow the feed meanwhile.
func TestAStreamThatGetsNoAnswerEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   []string
		want string
	}{
		"nothing changes": {nil, "reading the publication"},
		"a row changes":   {[]string{"INSERT INTO product VALUES (1, '', '')"}, "asking for a snapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, product)
			f := r.feed(nil, Table{Name: "product"})
			f.silence = 10 * time.Second
			w := r.open(f, feed.Position{})
			w.Changes(0)
			pid := int(r.value("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()").(int32))
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
			r.exec(c.do...)
			ctx := feedtest.Soon(t)
			var err error
			for err == nil {
				_, err = w.Next(ctx)
			}
			if !strings.Contains(err.Error(), c.want) && (c.do == nil || !strings.Contains(err.Error(), "reading the publication")) { // which comes first after 5 s
				t.Errorf("%v, want %q", err, c.want)
			}
			w.End()
		})
	}
}

// The server lets go of a slot that keeps more than it may.
func TestASlotThatFellTooFarBehindBeginsAnew(t *testing.T) {
	r := newRig(t, product)
	var log lockedBuilder
	f := r.feed(func(o *Options) {
		o.MaxRetained = 1
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	}, Table{Name: "product"})
	w := r.open(f, feed.Position{})
	w.Changes(0)
	redistest.Eventually(t, 10*time.Second, "the log has a warning", func() bool { return strings.Contains(log.String(), "retained=") })
	w.End()
	r.admin("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
	defer func() { r.admin("ALTER SYSTEM RESET max_slot_wal_keep_size"); r.admin("SELECT pg_reload_conf()") }()
	r.admin("SELECT pg_reload_conf()")
	for range 3 {
		r.exec("CREATE TABLE IF NOT EXISTS other (id int, t text)", "INSERT INTO other SELECT i, repeat('x', 100) FROM generate_series(1, 50000) i", "SELECT pg_switch_wal()")
	}
	r.admin("CHECKPOINT")
	s, err := f.Open(feedtest.Soon(t), w.At)
	if !errors.Is(err, feed.ErrPositionLost) {
		t.Fatalf("%v, %v", s, err)
	}
	if s, err := f.Stats(t.Context()); err != nil || s.Status != "lost" {
		t.Errorf("%+v, %v", s, err)
	}
	w = r.open(f, feed.Position{})
	r.exec("INSERT INTO product VALUES (1, '', '')")
	w.Changes(1)
}

type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(data)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Rows of another layout than the table has for the feed, from before an ALTER or after it, clear its caches.
//
// Defect: they end the stream with an error, for ever where they are in the log: nothing is told of any table,
// and the slot keeps the log.
func TestATableMayBeAlteredUnderWay(t *testing.T) {
	t.Parallel()
	r := newRig(t, product, "ALTER TABLE product REPLICA IDENTITY FULL")
	f := r.feed(nil, Table{"product", []string{"id", "slug"}})
	w := r.open(f, feed.Position{})
	r.exec("INSERT INTO product VALUES (1, 'a', 'A')", "ALTER TABLE product ADD price int, DROP name", "UPDATE product SET price = 5, slug = 'b'")
	if got, want := feedtest.Summary(w.Changes(2)), "1 <nil> map[id:1 slug:a]; 2 map[id:1 slug:a] map[id:1 slug:b]; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	began := w.At
	r.exec("ALTER TABLE product RENAME slug TO path", "UPDATE product SET path = 'c'")
	untold := fmt.Sprintf("%d <nil> <nil>; ", feed.Truncated)
	if got := feedtest.Summary(w.Changes(1)); got != untold {
		t.Errorf("got  %s\nwant %s", got, untold)
	}
	w.End()
	_, err := f.Open(feedtest.Soon(t), w.At)
	feedtest.WantError(t, err, `no column "slug"`)
	w = r.open(r.feed(nil, Table{"product", []string{"id", "path"}}), began)
	if got, want := feedtest.Summary(w.Changes(1)), "2 map[id:1 path:b] map[id:1 path:c]; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r.exec("CREATE DOMAIN code AS int", "ALTER TABLE product ALTER id TYPE code", "UPDATE product SET path = 'd'")
	if got := feedtest.Summary(w.Changes(1)); got != untold {
		t.Errorf("got  %s\nwant %s", got, untold)
	}
	w.End()
	w = r.open(r.feed(nil, Table{"product", []string{"id", "path"}}), w.At)
	r.exec("UPDATE product SET path = 'e'")
	if got, want := feedtest.Summary(w.Changes(1)), "2 map[id:1 path:d] map[id:1 path:e]; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// While nobody reads, the key gets another name, and the reader who comes knows that name.
	w.End()
	r.exec("UPDATE product SET path = 'f'", "ALTER TABLE product RENAME id TO number", "UPDATE product SET path = 'g'")
	w = r.open(r.feed(nil, Table{"product", []string{"number", "path"}}), w.At)
	if got, want := feedtest.Summary(w.Changes(2)), untold+"2 map[number:1 path:f] map[number:1 path:g]; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A server that was a standby for a moment has a new timeline, and the same past.
func TestAPositionOutlivesAPromotion(t *testing.T) {
	r := newRig(t, product)
	f := r.feed(nil, Table{Name: "product"})
	w := r.open(f, feed.Position{})
	r.exec("INSERT INTO product VALUES (1, '', '')")
	w.Changes(1)
	r.exec("INSERT INTO product VALUES (2, '', '')")
	w.End()
	r.s.Kill()
	signal := filepath.Join(r.s.Dir, "data", "standby.signal")
	if err := os.WriteFile(signal, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(signal, 0o666); err != nil {
		t.Fatal(err)
	}
	r.s.Restart(t)
	_, err := f.Open(feedtest.Soon(t), w.At)
	feedtest.WantError(t, err, "standby", "target_session_attrs")
	r.admin("SELECT pg_promote()")
	r.exec("INSERT INTO product VALUES (3, '', '')")
	w = r.open(f, w.At)
	if got, want := feedtest.Summary(w.Changes(2)), "1 <nil> map[id:2]; 1 <nil> map[id:3]; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	at, _ := parsePosition(w.At)
	if at.timeline < 2 {
		t.Errorf("timeline %d", at.timeline)
	}
	w.End()
	at.timeline-- // what the old primary may have told alone
	if s, err := f.Open(feedtest.Soon(t), at.public()); !errors.Is(err, feed.ErrPositionLost) {
		t.Errorf("%v, %v", s, err)
	}
}

package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver "mysql"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
	"github.com/levee-go/levee/cache/outbox"
	"github.com/levee-go/levee/internal/dbtest"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

var postgres, mariadb = &dbtest.Shared{Start: dbtest.Postgres}, &dbtest.Shared{Start: dbtest.MariaDB}

func TestMain(m *testing.M) { dbtest.Main(m, postgres, mariadb) }

// A database is one of a kind, with an outbox in it that is empty.
type database struct {
	*testing.T
	*sql.DB
	dialect outbox.Dialect
	source  string // for another connection
}

// inDatabases runs a test on each kind of database.
func inDatabases(t *testing.T, test func(d database)) {
	for name, open := range map[string]func(t *testing.T) database{"PostgreSQL": onPostgres, "MariaDB": onMariaDB, "SQLite": onSQLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each kind has one outbox, which the tests use in turn
			test(open(t))
		})
	}
}

func onPostgres(t *testing.T) database {
	return newDatabase(t, outbox.PostgreSQL, "pgx", postgres.Get(t).PostgresURL("postgres", "postgres"))
}

func onMariaDB(t *testing.T) database {
	admin := redistest.Must(sql.Open("mysql", fmt.Sprintf("root@tcp(127.0.0.1:%d)/", mariadb.Get(t).Port)))
	defer admin.Close()
	redistest.Must(admin.ExecContext(t.Context(), "CREATE DATABASE IF NOT EXISTS outbox"))
	return newDatabase(t, outbox.MySQL, "mysql", fmt.Sprintf("root@tcp(127.0.0.1:%d)/outbox?interpolateParams=true", mariadb.Get(t).Port))
}

func onSQLite(t *testing.T) database {
	file := filepath.Join(t.TempDir(), "database")
	return newDatabase(t, outbox.SQLite, "sqlite", "file:"+file+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_txlock=immediate")
}

func newDatabase(t *testing.T, dialect outbox.Dialect, driver, source string) database {
	db := redistest.Must(sql.Open(driver, source))
	t.Cleanup(func() { _ = db.Close() })
	d := database{t, db, dialect, source}
	d.do("DROP TABLE IF EXISTS levee_outbox")
	return d
}

func (d database) do(query string, args ...any) {
	d.Helper()
	if _, err := d.ExecContext(d.Context(), query, args...); err != nil {
		d.Fatal(err)
	}
}

// box makes the outbox and its table.
func (d database) box(changes ...func(*outbox.Options)) *outbox.Outbox {
	d.Helper()
	o := outbox.Options{Dialect: d.dialect, Every: time.Millisecond}
	for _, change := range changes {
		change(&o)
	}
	b := redistest.Must(outbox.New(d.DB, o))
	for range 2 { // it may be there
		if err := b.Create(d.Context()); err != nil {
			d.Fatal(err)
		}
	}
	return b
}

func (d database) begin() *sql.Tx {
	d.Helper()
	return redistest.Must(d.BeginTx(d.Context(), nil))
}

// add writes keys in a transaction of their own.
func (d database) add(b *outbox.Outbox, keys ...string) {
	d.Helper()
	tx := d.begin()
	if err := b.Add(d.Context(), tx, "product", keys...); err != nil {
		d.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		d.Fatal(err)
	}
}

func (d database) open(b *outbox.Outbox) feed.Stream {
	d.Helper()
	s, err := b.Open(d.Context(), feed.Position{})
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = s.Close() })
	return s
}

// next returns the keys of the next batch.
func (d database) next(s feed.Stream) ([]string, feed.Position) {
	d.Helper()
	ctx, cancel := context.WithTimeout(d.Context(), 20*time.Second)
	defer cancel()
	batch, err := s.Next(ctx)
	if err != nil {
		d.Fatal(err)
	}
	return keysOf(d.T, batch), batch.Position
}

func keysOf(t *testing.T, batch feed.Batch) (keys []string) {
	t.Helper()
	for _, change := range batch.Changes {
		key, err := change.New.Text(change.Key[0])
		if err != nil || change.Table != "product" {
			t.Errorf("got %+v, %v", change, err)
		}
		keys = append(keys, key)
	}
	return keys
}

// empty reports whether the stream has nothing to give.
func (d database) empty(s feed.Stream) bool {
	ctx, cancel := context.WithTimeout(d.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := s.Next(ctx)
	return err != nil
}

func (d database) rows() (n int) {
	d.Helper()
	if err := d.QueryRowContext(d.Context(), "SELECT COUNT(*) FROM levee_outbox").Scan(&n); err != nil {
		d.Fatal(err)
	}
	return n
}

func TestWhatIsAddedCommitsWithItsTransaction(t *testing.T) {
	inDatabases(t, func(d database) {
		b := d.box()
		s := d.open(b)
		tx := d.begin()
		if err := b.Add(d.Context(), tx, "product", "1", "2"); err != nil {
			d.Fatal(err)
		}
		if !d.empty(s) {
			d.Error("a change is read before its commit")
		}
		_ = tx.Rollback()
		if !d.empty(s) {
			d.Error("a change is read that was rolled back")
		}
		weird := []string{"", "a'b", `"; DROP TABLE levee_outbox; --`, "ä\n%7B", "A", "a"}
		before := time.Now().Add(-time.Second)
		d.add(b, weird...)
		ctx, cancel := context.WithTimeout(d.Context(), 20*time.Second)
		defer cancel()
		batch, err := s.Next(ctx)
		if err != nil || !slices.Equal(keysOf(d.T, batch), weird) || batch.Committed.Before(before) || batch.Behind != 0 {
			d.Errorf("got %+v, %v", batch, err)
		}
		d.do("INSERT INTO levee_outbox (subject, subject_key) VALUES ('product', '7')") // a trigger, say
		if got, _ := d.next(s); !slices.Equal(got, []string{"7"}) {
			d.Errorf("got %q", got)
		}
	})
}

// Numbers are given in the order of the inserts, and seen in the order of the commits.
// Defect: a reader that asks for numbers beyond the last one it has seen never sees the
// first of these rows.
func TestARowThatCommitsLateIsRead(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) database{"PostgreSQL": onPostgres, "MariaDB": onMariaDB} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := open(t)
			b := d.box()
			s := d.open(b)
			slow := d.begin()
			if err := b.Add(d.Context(), slow, "product", "slow"); err != nil {
				d.Fatal(err)
			}
			quick := []string{"1", "2", "3"}
			d.add(b, quick...)
			got, position := d.next(s)
			if !slices.Equal(got, quick) {
				d.Fatalf("got %q", got)
			}
			ctx, cancel := context.WithTimeout(d.Context(), 20*time.Second)
			defer cancel()
			if err := s.Confirm(ctx, position); err != nil { // it waits for no transaction
				d.Fatal(err)
			}
			if err := slow.Commit(); err != nil {
				d.Fatal(err)
			}
			if got, _ := d.next(s); !slices.Equal(got, []string{"slow"}) {
				d.Errorf("got %q", got)
			}
		})
	}
}

// Defect: while a filter does not confirm, a follower confirms nothing, and each poll reads all rows since then.
func TestAFollowerThatConfirmsNothingReadsNoFurther(t *testing.T) {
	inDatabases(t, func(d database) {
		b := d.box(func(o *outbox.Options) { o.Batch = 500 })
		b.MostWaiting(1000)
		s := d.open(b)
		keys := make([]string, 1001)
		for i := range keys {
			keys[i] = strconv.Itoa(i)
		}
		d.add(b, keys...)
		first, _ := d.next(s)
		second, at := d.next(s)
		if len(first) != 500 || len(second) != 500 {
			d.Fatalf("got %d and %d rows", len(first), len(second))
		}
		ctx, cancel := context.WithTimeout(d.Context(), 200*time.Millisecond)
		defer cancel()
		if batch, err := s.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			d.Errorf("%d rows, %v", len(batch.Changes), err)
		}
		if err := s.Confirm(d.Context(), at); err != nil || d.rows() != 1 {
			d.Errorf("%v, %d rows are left", err, d.rows())
		}
		if third, _ := d.next(s); len(third) != 1 {
			d.Errorf("then there are %d rows", len(third))
		}
	})
}

// A follower that dies before it confirms leaves everything for the next one.
func TestRowsStayUntilTheyAreConfirmed(t *testing.T) {
	inDatabases(t, func(d database) {
		b := d.box(func(o *outbox.Options) { o.Batch = 2 })
		s := d.open(b)
		d.add(b, "1", "2", "3", "4", "5")
		first, one := d.next(s)
		second, two := d.next(s) // without a Confirm in between
		if !slices.Equal(first, []string{"1", "2"}) || !slices.Equal(second, []string{"3", "4"}) || two.Order <= one.Order {
			d.Fatalf("got %q and %q, at %v and %v", first, second, one, two)
		}
		if err := s.Confirm(d.Context(), one); err != nil || d.rows() != 3 {
			d.Errorf("%v, %d rows are left", err, d.rows())
		}
		next := redistest.Must(b.Open(d.Context(), two))
		if err := next.Confirm(d.Context(), two); err != nil { // it does not know which rows these are
			d.Error(err)
		}
		for _, want := range [][]string{{"3", "4"}, {"5"}} {
			got, at := d.next(next)
			if err := next.Confirm(d.Context(), at); err != nil || !slices.Equal(got, want) || at.Order <= two.Order {
				d.Errorf("got %q at %v, %v, want %q", got, at, err, want)
			}
		}
		if n := d.rows(); n != 0 {
			d.Errorf("%d rows are left", n)
		}
	})
}

// A follower that stood still confirms what another one has dealt with meanwhile. Defect:
// the database gives the number of a deleted row again, and the late Confirm deletes what
// nobody has read.
func TestALateConfirmDeletesNothingNew(t *testing.T) {
	inDatabases(t, func(d database) {
		b := d.box()
		late, other := d.open(b), d.open(b)
		d.add(b, "1")
		_, position := d.next(late)
		_, at := d.next(other)
		if err := other.Confirm(d.Context(), at); err != nil {
			d.Fatal(err)
		}
		d.add(b, "2")
		if err := late.Confirm(d.Context(), position); err != nil {
			d.Fatal(err)
		}
		if n := d.rows(); n != 1 {
			d.Fatalf("%d rows", n)
		}
		if got, _ := d.next(other); !slices.Equal(got, []string{"2"}) {
			d.Errorf("got %q", got)
		}
	})
}

// Every change that was committed is read, and none that was not, whatever transactions
// do at the same time.
func TestEveryCommittedChangeIsRead(t *testing.T) {
	inDatabases(t, func(d database) {
		b := d.box(func(o *outbox.Options) { o.Batch = 7 })
		s := d.open(b)
		var mu sync.Mutex
		committed, read := map[string]bool{}, map[string]int{}
		var writers sync.WaitGroup
		for w := range 4 {
			writers.Go(func() {
				for n := range 40 {
					tx, err := d.BeginTx(d.Context(), nil)
					if err != nil {
						d.Error(err)
						return
					}
					keys := make([]string, 1+rand.IntN(5))
					for i := range keys {
						keys[i] = fmt.Sprint(w, "-", n, "-", i)
					}
					if err := b.Add(d.Context(), tx, "product", keys...); err != nil {
						d.Error(err)
					}
					if rand.IntN(4) == 0 {
						time.Sleep(rand.N(5 * time.Millisecond))
					}
					if rand.IntN(5) == 0 {
						_ = tx.Rollback()
						continue
					}
					if err := tx.Commit(); err != nil {
						d.Error(err)
						continue
					}
					mu.Lock()
					for _, key := range keys {
						committed[key] = true
					}
					mu.Unlock()
				}
			})
		}
		done := make(chan struct{})
		go func() { writers.Wait(); close(done) }()
		for over := false; !over || d.rows() > 0; {
			select {
			case <-done:
				over = true
			default:
			}
			ctx, cancel := context.WithTimeout(d.Context(), 100*time.Millisecond)
			batch, err := s.Next(ctx)
			cancel()
			if err != nil {
				continue
			}
			for _, key := range keysOf(d.T, batch) {
				read[key]++
			}
			if rand.IntN(10) == 0 { // another follower
				s = redistest.Must(b.Open(d.Context(), batch.Position))
				continue
			}
			if err := s.Confirm(d.Context(), batch.Position); err != nil {
				d.Error(err)
			}
		}
		if !maps.EqualFunc(committed, read, func(bool, int) bool { return true }) {
			d.Errorf("%d keys are committed, %d read", len(committed), len(read))
		}
	})
}

func TestBehindIsHowManyRowsAreLeft(t *testing.T) {
	inDatabases(t, func(d database) {
		b := d.box()
		s := d.open(b)
		keys := make([]string, 1203)
		for i := range keys {
			keys[i] = strconv.Itoa(i)
		}
		d.add(b, keys...)
		var got []string
		for _, behind := range []int64{703, 203, 0} {
			batch, err := s.Next(d.Context())
			if err != nil || batch.Behind != behind {
				d.Fatalf("%d rows are behind, want %d (%v)", batch.Behind, behind, err)
			}
			got = append(got, keysOf(d.T, batch)...)
		}
		if !slices.Equal(got, keys) {
			d.Errorf("%d keys of %d", len(got), len(keys))
		}
		if err := s.Confirm(d.Context(), feed.Position{Order: 1 << 62}); err != nil || d.rows() != 0 {
			d.Errorf("%v, %d rows are left", err, d.rows())
		}
	})
}

// With notifications nobody waits for the next look.
func TestANotificationWakesTheFeed(t *testing.T) {
	d := onPostgres(t)
	wake, stop := d.listen()
	b := d.box(func(o *outbox.Options) { o.Every, o.Wake = time.Hour, wake })
	d.do(d.dialect.Notify("levee_outbox"))
	s := d.open(b)
	for i := range 3 {
		go func() {
			time.Sleep(10 * time.Millisecond)
			query, args := b.Insert("product", strconv.Itoa(i))
			if _, err := d.ExecContext(d.Context(), query, args...); err != nil {
				d.Error(err)
			}
		}()
		if got, _ := d.next(s); !slices.Equal(got, []string{strconv.Itoa(i)}) {
			d.Errorf("got %q", got)
		}
	}
	stop()
	if !d.empty(s) {
		d.Error("a channel that is closed brings rows")
	}
}

// listen signals what a PostgreSQL notifies, until stop, which closes the channel.
func (d database) listen() (wake chan struct{}, stop func()) {
	wake = make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(d.Context())
	conn := redistest.Must(pgx.Connect(ctx, d.source))
	redistest.Must(conn.Exec(ctx, "LISTEN levee_outbox"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(wake)
		defer conn.Close(context.WithoutCancel(ctx))
		for {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return
			}
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	d.Cleanup(stop)
	return wake, stop
}

// A writer of plain SQL and a cache that it does not know.
func TestFollowAnOutbox(t *testing.T) {
	inDatabases(t, func(d database) {
		s := redistest.Start(d)
		b := d.box()
		d.do("DROP TABLE IF EXISTS product")
		d.do("CREATE TABLE product (id INTEGER PRIMARY KEY, price INTEGER NOT NULL)")
		d.do("INSERT INTO product VALUES (1, 0)")
		var caches []*cache.Cache[int64, int]
		for range 2 {
			c := redistest.Must(cache.New(s.Client(d), func(ctx context.Context, id int64) (price int, err error) {
				err = d.QueryRowContext(ctx, "SELECT price FROM product WHERE id = "+strconv.FormatInt(id, 10)).Scan(&price)
				return price, err
			}, cache.Options{Name: "product", RedisTimeout: 5 * time.Second, Local: localcache.Options{MaxBytes: -1}, Logger: slog.New(slog.DiscardHandler)}))
			d.Cleanup(func() { _ = c.Close() })
			caches = append(caches, c)
			source := func(context.Context, int64) (int, error) { return 0, nil }
			if _, err := audit.NewLedger(c, source, audit.LedgerOptions[int64, int]{Feed: b}); err == nil {
				d.Error("a Ledger takes the rows of an outbox away from Follow")
			}
			d.Cleanup(redistest.Must(audit.NewLedger(c, source, audit.LedgerOptions[int64, int]{Share: 1})).Close)
		}
		ctx, cancel := context.WithCancel(d.Context())
		var followers sync.WaitGroup
		for _, c := range caches {
			followers.Go(func() { _ = cache.Follow(ctx, b, c.Route("product", nil)) })
		}
		defer followers.Wait()
		defer cancel()
		for price := 1; price <= 20; price++ {
			for _, c := range caches {
				_, _ = c.Get(d.Context(), 1)
			}
			tx := d.begin()
			_, err := tx.ExecContext(d.Context(), "UPDATE product SET price = "+strconv.Itoa(price)+" WHERE id = 1")
			if err == nil {
				err = b.Add(d.Context(), tx, "product", "1")
			}
			if err != nil {
				d.Fatal(err)
			}
			if err := tx.Commit(); err != nil {
				d.Fatal(err)
			}
			redistest.Eventually(d, 20*time.Second, "the row is dealt with", func() bool { return d.rows() == 0 })
			for i, c := range caches {
				if got, err := c.Get(d.Context(), 1); err != nil || got != price {
					d.Fatalf("process %d has %d, %v; want %d", i, got, err, price)
				}
			}
		}
		if a, b := caches[0].Stats().Ledger.Changes, caches[1].Stats().Ledger.Changes; a+b < 20 || a > 0 && b > 0 {
			d.Errorf("the Ledgers have heard of %d and %d of 20 changes, want all in the process that follows", a, b)
		}
	})
}

// What was committed is not lost when the database dies, and the follower finds it again.
func TestFollowSurvivesARestartOfTheDatabase(t *testing.T) {
	for name, test := range map[string]struct {
		server *dbtest.Shared
		open   func(t *testing.T) database
	}{"PostgreSQL": {postgres, onPostgres}, "MariaDB": {mariadb, onMariaDB}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := test.open(t)
			s := redistest.Start(t)
			b := d.box()
			c := redistest.Must(cache.New(s.Client(t), func(context.Context, int64) (int, error) { return 1, nil },
				cache.Options{Name: "product", RedisTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)}))
			t.Cleanup(func() { _ = c.Close() })
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Follow(ctx, b) }()
			defer func() { cancel(); <-done }()
			d.add(b, "1")
			redistest.Eventually(t, 20*time.Second, "the row is dealt with", func() bool { return c.Stats().Follow.Changes > 0 })
			test.server.Get(t).Kill()
			redistest.Eventually(t, 20*time.Second, "the follower notices", func() bool { return c.Stats().Follow.Failures > 0 })
			test.server.Get(t)
			redistest.Eventually(t, 20*time.Second, "a row is written", func() bool { return b.Add(t.Context(), d.DB, "product", "2") == nil })
			redistest.Eventually(t, 20*time.Second, "it is dealt with", func() bool { return c.Stats().Follow.Changes >= 2 && d.rows() == 0 })
		})
	}
}

// A server that has the question and does not answer, as over a link that drops packets. Without
// a limit the stream waits with its caller's ctx, which has none.
func TestAnAnswerThatDoesNotComeIsAnError(t *testing.T) {
	d := onPostgres(t)
	b := d.box()
	b.Wait(2 * time.Second)
	s := d.open(b)
	d.add(b, "1")
	_, at := d.next(s)
	blocking := d.begin()
	redistest.Must(blocking.ExecContext(t.Context(), "LOCK TABLE levee_outbox IN ACCESS EXCLUSIVE MODE"))
	for name, ask := range map[string]func(context.Context) error{
		"Open":    func(ctx context.Context) error { _, err := b.Open(ctx, feed.Position{}); return err },
		"Next":    func(ctx context.Context) error { _, err := s.Next(ctx); return err },
		"Confirm": func(ctx context.Context) error { return s.Confirm(ctx, at) },
	} {
		if ctx := feedtest.Soon(t); ask(ctx) == nil || ctx.Err() != nil {
			t.Errorf("%s waits for ever", name)
		}
	}
	if err := blocking.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := s.Confirm(t.Context(), at); err != nil || d.rows() != 0 {
		t.Errorf("%d rows are left, %v", d.rows(), err)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	db := onSQLite(t).DB
	for says, o := range map[string]outbox.Options{
		"Dialect": {},
		"Table":   {Dialect: outbox.SQLite, Table: "a; DROP TABLE b"},
		"Every":   {Dialect: outbox.SQLite, Every: -1},
		"Batch":   {Dialect: outbox.SQLite, Batch: 1 << 20},
	} {
		if _, err := outbox.New(db, o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := outbox.New(nil, outbox.Options{Dialect: outbox.SQLite}); err == nil {
		t.Error("no database is enough")
	}
	b := redistest.Must(outbox.New(db, outbox.Options{Dialect: outbox.SQLite, Table: "not_there"}))
	if _, err := b.Open(t.Context(), feed.Position{}); err == nil || !strings.Contains(err.Error(), "not_there") {
		t.Errorf("a table that is not there: %v", err)
	}
}

// fleet is a table for tests of whole processes.
func (d database) fleet(change func(*outbox.Options)) feedtest.Database {
	d.Helper()
	b := d.box()
	d.do("DROP TABLE IF EXISTS product")
	d.do("CREATE TABLE product (id INTEGER PRIMARY KEY, name VARCHAR(100) NOT NULL)")
	d.do("INSERT INTO product VALUES (1, ''), (2, ''), (3, ''), (4, ''), (5, '')")
	return feedtest.Database{
		Table: "product",
		Feed:  func() feed.Feed { return d.box(change) },
		Reader: func() cache.Loader[int64, string] {
			return func(ctx context.Context, id int64) (name string, err error) {
				err = d.QueryRowContext(ctx, "SELECT name FROM product WHERE id = "+strconv.FormatInt(id, 10)).Scan(&name)
				return name, err
			}
		},
		Write: func(id int64, name string) error {
			tx, err := d.BeginTx(d.Context(), nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }() // does nothing after a Commit
			key := strconv.FormatInt(id, 10)
			if _, err := tx.ExecContext(d.Context(), "UPDATE product SET name = '"+name+"' WHERE id = "+key); err != nil {
				return err
			}
			if err := b.Add(d.Context(), tx, "product", key); err != nil {
				return err
			}
			return tx.Commit()
		},
	}
}

func TestEveryProcessServesWhatAnOutboxTells(t *testing.T) {
	inDatabases(t, func(d database) {
		fleet := d.fleet(func(o *outbox.Options) { o.Every = 10 * time.Millisecond })
		if d.dialect == outbox.PostgreSQL {
			d.do(d.dialect.Notify("levee_outbox"))
			fleet = d.fleet(func(o *outbox.Options) { o.Every = time.Minute; o.Wake, _ = d.listen() })
		}
		feedtest.EveryProcessServes(d.T, fleet)
	})
}

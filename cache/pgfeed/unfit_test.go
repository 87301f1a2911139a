package pgfeed

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
	"github.com/levee-go/levee/internal/redistest"
)

// A follower opens the feed anew when its stream has ended, as cache.Follow does.
type follower struct {
	t    *testing.T
	feed *Feed
	s    feed.Stream
	at   feed.Position
	lost int // positions

	refused error // by the last Open that has failed
}

func follow(t *testing.T, f *Feed) *follower {
	w := &follower{t: t, feed: f}
	w.open()
	t.Cleanup(func() { _ = w.s.Close() })
	return w
}

func (w *follower) open() {
	w.t.Helper()
	for ctx := feedtest.Soon(w.t); ; {
		s, err := w.feed.Open(ctx, w.at)
		switch {
		case err == nil:
			w.s = s
			return
		case errors.Is(err, feed.ErrPositionLost):
			w.at = feed.Position{}
			w.lost++
		case ctx.Err() != nil:
			w.t.Fatalf("%v; before it: %v", err, w.refused)
		default:
			w.refused = err
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// change returns the next change of a table. All tables are as if Truncated when the position is lost.
func (w *follower) change(table string) feed.Change {
	w.t.Helper()
	for ctx := feedtest.Soon(w.t); ; {
		b, err := w.s.Next(ctx)
		switch {
		case ctx.Err() != nil:
			w.t.Fatalf("no change of %s: %v", table, err)
		case err != nil:
			_ = w.s.Close()
			before := w.lost
			if errors.Is(err, feed.ErrPositionLost) {
				w.at = feed.Position{}
				w.lost++
			}
			if w.open(); w.lost > before {
				return feed.Change{Table: table, Kind: feed.Truncated}
			}
			continue
		case b.Position != feed.Position{}:
			w.at = b.Position
		}
		for _, c := range b.Changes {
			if c.Table == table {
				return c
			}
		}
	}
}

// untilInserted inserts rows from id 10 on, until one is told by its key.
func (w *follower) untilInserted(table string, insert func(id int)) {
	w.t.Helper()
	ctx := feedtest.Soon(w.t)
	for id := 10; ctx.Err() == nil; id++ {
		if insert(id); w.change(table).Kind == feed.Inserted {
			return
		}
	}
	w.t.Fatalf("rows of %s are not told by their keys", table)
}

// One table cannot be followed as it is, when the feed is opened or from then on.
//
// Defect: Open refuses all tables for as long as one is unfit, so that nothing is invalidated in any cache.
func TestATableThatIsUnfitDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	const wrong, full = "CREATE TABLE wrong (id int PRIMARY KEY, slug text NOT NULL)", "ALTER TABLE wrong REPLICA IDENTITY FULL"
	for name, c := range map[string]struct {
		setUp   []string
		publish string // "": the feed makes the publication
		spoil   []string
		fix     []string
		want    string // of the log
		keeps   bool   // the position, when the table is fit again
	}{
		"it lacks a column": {setUp: []string{wrong, full, "ALTER TABLE wrong RENAME slug TO path"}, fix: []string{"ALTER TABLE wrong RENAME path TO slug"},
			want: `no column \"slug\"`},
		"its identity lacks a column": {setUp: []string{wrong}, fix: []string{full}, want: "ALTER TABLE wrong REPLICA IDENTITY FULL"},
		"it does not exist":           {fix: []string{wrong, full}, want: "public.wrong: does not exist"},
		"it is not logged": {setUp: []string{wrong, full, "ALTER TABLE wrong SET UNLOGGED"}, publish: "FOR ALL TABLES",
			fix: []string{"ALTER TABLE wrong SET LOGGED"}, want: "unlogged"},
		"it is not published, by somebody else": {setUp: []string{wrong, full}, publish: "FOR TABLE product", fix: []string{"ALTER PUBLICATION feed ADD TABLE wrong"},
			want: `ALTER PUBLICATION \"feed\" ADD TABLE \"public\".\"wrong\"`},
		"a column is renamed while it is followed": {setUp: []string{wrong, full}, spoil: []string{"ALTER TABLE wrong RENAME slug TO path", "UPDATE wrong SET path = 'b'"},
			fix: []string{"ALTER TABLE wrong RENAME path TO slug"}, want: `no column \"slug\"`, keeps: true},
		"it is dropped while it is followed": {setUp: []string{wrong, full}, spoil: []string{"DROP TABLE wrong"}, fix: []string{wrong, full}, want: "public.wrong: does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, append([]string{product}, c.setUp...)...)
			url := r.url("postgres")
			if c.publish != "" { // by its owner, for a user who may not change it
				r.exec("CREATE PUBLICATION feed "+c.publish+" WITH (publish_via_partition_root = true)", "CREATE ROLE "+r.name+" LOGIN REPLICATION")
				t.Cleanup(func() { r.admin("DROP ROLE " + r.name) })
				url = r.url(r.name)
			}
			if c.spoil != nil {
				r.exec("INSERT INTO wrong VALUES (1, 'a')")
			}
			var log redistest.Log
			f := r.feed(func(o *Options) { o.URL, o.Publication, o.Logger = url, "feed", log.Logger() }, Table{Name: "product"}, Table{"wrong", []string{"id", "slug"}})
			f.again = 200 * time.Millisecond
			f.patience = 3 * time.Second // a third of it is how often the server is sure to say something
			w := follow(t, f)
			r.exec(c.spoil...)
			for range 3 {
				if got := w.change("wrong"); got.Kind != feed.Truncated {
					t.Fatalf("told %+v", got)
				}
			}
			log.Await(t, c.want)
			r.exec("INSERT INTO product VALUES (1, '', '')")
			if got := w.change("product"); got.Kind != feed.Inserted || got.New["id"] != int64(1) {
				t.Errorf("of the other table %+v is told", got)
			}
			feedtest.WantError(t, f.Check(feedtest.Soon(t)), "wrong")
			_ = w.s.Close()
			w.open() // another time
			for range 2 {
				w.change("wrong")
			}
			if n := log.Count("a table cannot be followed"); n != 1 {
				t.Errorf("the log says it %d times:\n%s", n, &log)
			}

			w.lost = 0
			r.exec(c.fix...)
			w.untilInserted("wrong", func(id int) { r.exec(fmt.Sprintf("INSERT INTO wrong (id, slug) VALUES (%d, 'a')", id)) })
			if keeps := w.lost == 0; keeps != c.keeps {
				t.Errorf("%d positions are lost when it is fit again", w.lost)
			}
			r.exec("UPDATE wrong SET slug = 'z' WHERE id = 10")
			got := w.change("wrong")
			for got.Kind == feed.Inserted {
				got = w.change("wrong")
			}
			if got := feedtest.Summary([]feed.Change{got}); got != "2 map[id:10 slug:a] map[id:10 slug:z]; " {
				t.Errorf("then %s is told", got)
			}
			if err := f.Check(feedtest.Soon(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// A column that gets a type of which the feed has not read. Its rows cannot be read until it has, which it does by itself.
//
// Defect: each change clears the caches of the table until the process starts anew.
func TestATypeThatIsNewIsRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, product, "ALTER TABLE product REPLICA IDENTITY FULL") // so that no list of columns keeps it from being altered
	f := r.feed(nil, Table{Name: "product"})
	f.again = 200 * time.Millisecond
	w := follow(t, f)
	r.exec("CREATE DOMAIN code AS bigint", "ALTER TABLE product ALTER id TYPE code")
	w.untilInserted("product", func(id int) { r.exec(fmt.Sprintf("INSERT INTO product VALUES (%d, '', '')", id)) })
	if w.lost > 0 {
		t.Errorf("%d positions are lost", w.lost)
	}
}

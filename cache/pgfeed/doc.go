// Package pgfeed tells a cache which rows of a PostgreSQL database have changed, whoever has
// changed them. It reads the database's log by logical replication, see [feed.Feed].
//
//	feed, err := pgfeed.New(pgfeed.Options{
//		Name:   "shop",
//		URL:    "postgres://levee:secret@db/shop",
//		Tables: []pgfeed.Table{{Name: "public.product", Columns: []string{"id", "slug"}}},
//	})
//
// # What to set up
//
// In postgresql.conf, wal_level = logical, which takes a restart; and max_slot_wal_keep_size,
// 10GB for example. While nobody reads the slot the server keeps its log for it, up to that
// size; beyond it the feed has lost its position and the caches are cleared. Without it, the
// disk fills.
//
// Then a superuser makes the user that reads,
//
//	CREATE ROLE levee LOGIN REPLICATION PASSWORD 'secret';
//
// and the owner of the tables publishes them:
//
//	ALTER TABLE public.product REPLICA IDENTITY FULL;
//	CREATE PUBLICATION levee_shop FOR TABLE public.product WITH (publish_via_partition_root = true);
//
// With synchronous standbys, also GRANT pg_read_all_stats TO levee: a first Open then waits for
// commits that wait for a standby, and otherwise for a second at the most.
//
// The feed makes the slot itself, and the publication too if its user owns the tables and may
// CREATE in the database. pg_hba.conf must let the user reach the database itself; the word
// replication there is for standbys.
//
// REPLICA IDENTITY says what the log has of an old row. By default that is its primary key,
// which is enough if all of the cache's keys are made of it. Otherwise the columns that they
// are made of need FULL, which logs the old row whole, or USING INDEX with a unique index over
// just those columns:
//
//	CREATE UNIQUE INDEX product_feed ON public.product (id, slug);
//	ALTER TABLE public.product REPLICA IDENTITY USING INDEX product_feed;
//
// Where the feed makes the publication itself, PostgreSQL 15 and later send only the columns
// that it needs. Such a list of columns must go before REPLICA IDENTITY is set to FULL:
// PostgreSQL refuses updates of a table that has both.
//
// # What it promises
//
// Each committed change of the tables comes at least once, in the order of the commits, and
// not before other transactions see it. The slot moves only when the follower has confirmed.
// A position that the server cannot go on from is [feed.ErrPositionLost]: a slot that was
// dropped or fell behind too far, a backup that was restored, a standby that was promoted
// before it had everything. So is one from before the publication was made anew or altered, another
// table took the name of one, or a REPLICA IDENTITY was altered: what commits while the publication
// lacks a table, or the log lacks an old value, is not told, and the server does not say so. While a
// feed is followed it looks for that every five seconds.
//
// A partition does not inherit REPLICA IDENTITY: set it in the transaction that makes the partition,
// or its table cannot be followed until you do.
//
// # A table that cannot be followed
//
// One that does not exist, lacks a column of Columns, has a REPLICA IDENTITY that lacks one, or is
// not in a publication that the feed may not alter, does not stop the others. Its caches are cleared when the
// feed is opened, once a minute, and at each change of it that the log has: it comes as
// [feed.Truncated]. The log has one Error that names the table and the way out, such as the
// statement to run, and [Feed.Check] says it too. Within a minute after that is done the feed tells its rows again;
// if the publication lacked the table, the position is lost then, and all caches of the feed are cleared once.
// Open is refused only if no table can be followed. The filter of a cache abstains meanwhile, since inserted keys
// are not known, and Cache.KeepFilter rebuilds it after each of these clears.
//
// # What it cannot tell
//
// ALTER TABLE that rewrites rows, DROP TABLE, and partitions that are attached, detached or
// truncated by themselves change rows without a word in the log: clear the cache. Tables that
// are unlogged are not in the log, and neither are generated columns.
package pgfeed

// Package pgfeed reports to a cache which rows of a PostgreSQL database have changed, whoever has
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
// size; beyond it the feed loses its position and the caches are cleared. Without this setting the
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
// With synchronous standbys, also GRANT pg_read_all_stats TO levee: a first Open then waits for all
// commits that wait for a standby; without the right it waits for a second at most.
//
// The feed makes the slot itself, and the publication too if its user owns the tables and may
// CREATE in the database. pg_hba.conf must let the user connect to the database by its name; the
// word replication there is for standbys.
//
// REPLICA IDENTITY says which columns of an old row the log has. By default that is the primary key,
// which is enough if all of the cache's keys are made of it. Otherwise set it to FULL, which logs the
// whole old row, or to USING INDEX with a unique index over exactly the columns that the keys are
// made of:
//
//	CREATE UNIQUE INDEX product_feed ON public.product (id, slug);
//	ALTER TABLE public.product REPLICA IDENTITY USING INDEX product_feed;
//
// If the feed makes the publication itself, PostgreSQL 15 and later send only the columns
// that it needs. Remove such a list of columns before you set REPLICA IDENTITY to FULL:
// PostgreSQL refuses updates of a table that has both.
//
// # What it promises
//
// Each committed change of the tables comes at least once, in the order of the commits, and not
// before other transactions see it. The slot moves only when the follower has confirmed. If the
// server cannot continue from a position, the error is [feed.ErrPositionLost]: the slot was dropped
// or fell behind too far, a backup was restored, or a standby was promoted before it had
// everything. The position is also lost when the publication was made anew or altered, another
// table took the name of one, or a REPLICA IDENTITY was altered: the server does not send changes
// that commit while the publication lacks a table or the log lacks an old value, and does not say
// so. The feed checks that every five seconds while it is followed.
//
// A partition does not inherit REPLICA IDENTITY: set it in the transaction that makes the partition,
// or its table cannot be followed until you do.
//
// # A table that cannot be followed
//
// A table that does not exist, lacks a column of Columns, has a REPLICA IDENTITY that lacks one, or
// is missing from a publication that the feed may not alter, does not stop the others. Its caches
// are cleared when the feed is opened, once a minute, and at each change of the table in the log:
// the change comes as [feed.Truncated]. One Error in the log names the table and the remedy, such
// as the statement to run, and [Feed.Check] returns it too. Within a minute after that the feed
// reports the table's rows again; if the publication lacked the table, the position is lost then,
// and all caches of the feed are cleared once. Open returns an error only if no table can be
// followed. The filter of a cache abstains meanwhile, since inserted keys are not known, and
// Cache.KeepFilter rebuilds it after each of these clears.
//
// # Changes that it misses
//
// The log has no row changes of an ALTER TABLE that rewrites rows, of a DROP TABLE, or of a single
// partition that is attached, detached or truncated: clear the cache after them. Unlogged tables
// and generated columns are not in the log.
package pgfeed

// Package mysqlfeed reports to a cache which rows of a MySQL or MariaDB database have changed,
// whoever has changed them. It reads the server's binary log as a replica does, see [feed.Feed].
//
//	feed, err := mysqlfeed.New(mysqlfeed.Options{
//		Name: "shop",
//		Addr: "db:3306", User: "levee", Password: "secret",
//		Tables: []mysqlfeed.Table{{Name: "shop.product", Columns: []string{"id", "slug"}}},
//	})
//
// # What to set up
//
// In the server's configuration, set log_bin, binlog_format = ROW and binlog_row_image = FULL, which
// are the defaults of MySQL and, except for the format, of MariaDB; in MySQL also gtid_mode = ON and
// enforce_gtid_consistency = ON. Set sync_binlog = 1, otherwise a crash of the machine may lose the end
// of the log and changes with it. binlog_expire_logs_seconds says how long the feed may be away.
// With binlog_transaction_compression in MySQL, the feed reads each transaction into memory as a whole,
// uncompressed; otherwise a transaction of any size takes little memory.
//
// Then an administrator makes the user that reads:
//
//	CREATE USER 'levee'@'%' IDENTIFIED BY 'secret';
//	GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'levee'@'%';
//	GRANT SELECT ON shop.product TO 'levee'@'%';
//
// # What it promises
//
// Each committed change of the tables comes at least once, in the order of the log, and not
// before other transactions see it. Positions are global transaction ids, so they are valid on any
// server of a replication set. If the server cannot continue from a position, the error is
// [feed.ErrPositionLost]: the log after it was purged or RESET, or the server
// was restored from a backup, or is a replica that was promoted before it had everything.
//
// A change of a table that the log does not have row by row comes as [feed.Truncated], for which the
// table's caches are cleared: a statement that names the table and is not known to be
// harmless, such as ALTER, DROP, RENAME and TRUNCATE TABLE; and rows of a session
// that has set binlog_row_image. XA COMMIT, and a statement of a session that has set
// binlog_format to STATEMENT, is a change of all tables, since views, triggers and functions
// hide which tables it changes. In MariaDB the rows that an ON DELETE CASCADE may have changed
// are also reported as Truncated: so is each delete from a table whose foreign key refers to itself,
// and under LOCK TABLES each statement. MySQL does not log them, so a first Open refuses such a table.
//
// A row also comes as Truncated if it is not certain that it has the table's present columns, since
// the log does not name columns: a row between an ALTER TABLE and the moment at which the feed has
// read the columns anew. With binlog_row_metadata = FULL the log names them, and such rows are
// reported one by one.
//
// A table that does not exist, lacks a column of Columns, or is not visible to the user does not
// stop the others: the feed logs an error, once a minute, and each change of the table comes as
// Truncated until it is fit. Only a first Open returns an error, if none of the tables is fit.
//
// # Changes that it misses
//
// The feed misses changes of sessions with sql_log_bin = 0; it notices an ALTER TABLE of such a
// session by the types of the rows that follow, if at all. Transactions whose global id has a tag,
// which MySQL allows since 8.3, end the stream with an error.
package mysqlfeed

// Package mysqlfeed tells a cache which rows of a MySQL or MariaDB database have changed,
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
// In the server's configuration: log_bin; binlog_format = ROW, binlog_row_image = FULL, which
// are the defaults of MySQL, and of MariaDB but for the format; in MySQL also gtid_mode = ON and
// enforce_gtid_consistency = ON. sync_binlog = 1, or a crash of the machine may lose the end of
// the log and with it changes. binlog_expire_logs_seconds says how long the feed may be away.
// With binlog_transaction_compression in MySQL, the feed takes each transaction into memory whole,
// uncompressed; otherwise a transaction of any size takes little.
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
// before other transactions see it. Positions are global transaction ids, so they hold on any
// server of a replication set. A position that the server cannot go on from is
// [feed.ErrPositionLost]: the log that comes after it was purged or RESET, or the server
// was restored from a backup, or is a replica that was promoted before it had everything.
//
// A statement that changes a table in a way which the log does not tell row by row comes as
// [feed.Truncated], for which the table's caches are cleared: one that names the table and is
// not known to be harmless, such as ALTER, DROP, RENAME and TRUNCATE TABLE; and rows of a session
// that has set binlog_row_image. XA COMMIT, and a statement of a session that has set
// binlog_format to STATEMENT, is a change of all tables, since views, triggers and functions
// hide which. In MariaDB the rows that an ON DELETE CASCADE may have changed
// come so too; MySQL does not tell them, so Open refuses such a table.
//
// So does a row that is not proven to be of the table's present columns, since the log does not
// name them: one between an ALTER TABLE and the moment at which the feed has read the columns
// anew. With binlog_row_metadata = FULL the log names them, and such rows are told one by one.
//
// A table that is not there, or has no column that is named in Columns, or that the user may not
// see, does not stop the others: the log says so at each minute, and each change of it comes as
// Truncated until it is fit. Only a first Open is refused, if none of the tables is fit.
//
// # What it cannot tell
//
// Changes of sessions with sql_log_bin = 0; an ALTER TABLE of one is known by the types of the
// rows that follow, if at all. Transactions whose global id has a tag, as MySQL has
// them since 8.3, end the stream with an error.
package mysqlfeed

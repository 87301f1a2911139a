package logonce

import (
	"context"
	"log/slog"
	"strings"
)

// WithEvents returns a logger that adds an attribute "event" to each line of this library: a name
// that stays when the text is put better, to search and to alert on. It is log itself if that is
// such a logger.
func WithEvents(log *slog.Logger) *slog.Logger {
	if _, ok := log.Handler().(adder); ok {
		return log
	}
	return slog.New(adder{log.Handler()})
}

// EventOf returns the event of a line, with or without the prefix of its package; "": it has none.
func EventOf(message string) string {
	if event, ok := events[message]; ok {
		return event
	}
	_, text, _ := strings.Cut(message, ": ")
	return events[text]
}

// An adder is the Handler of a logger with events.
type adder struct{ slog.Handler }

func (h adder) Handle(ctx context.Context, r slog.Record) error {
	if event := EventOf(r.Message); event != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("event", event))
	}
	return h.Handler.Handle(ctx, r)
}

func (h adder) WithAttrs(attrs []slog.Attr) slog.Handler { return adder{h.Handler.WithAttrs(attrs)} }

func (h adder) WithGroup(name string) slog.Handler { return adder{h.Handler.WithGroup(name)} }

// events are the names of all lines. A line whose text changes keeps its name; a name that has been
// in a release is not given to another line. docs/reference/log-lines.md explains them.
var events = map[string]string{
	"redis refuses what a cache needs":                                  "redis_refuses_cache",
	"redis refuses what a filter needs":                                 "redis_refuses_filter",
	"redis refuses connections":                                         "redis_refuses_connections",
	"redis does not reply; the caches go on without it until it does":   "redis_outage",
	"redis replies again":                                               "redis_back",
	"a breaker is open: the source fails and is not called for a while": "breaker_open",
	"a breaker is closed again: the source works":                       "breaker_closed",
	"redis failed":                                                                                 "redis_failed",
	"no messages of other processes arrive":                                                        "messages_silent",
	"messages of other processes arrive again":                                                     "messages_back",
	"an invalidation is not confirmed and is tried again":                                          "invalidation_pending",
	"too many invalidations wait for redis: the cache is cleared in their place":                   "invalidations_become_clear",
	"invalidations are given up, since the process ends: old values may be served until their TTL": "invalidations_dropped",
	"the invalidation after a failed write is not confirmed, and is tried again":                   "invalidation_of_failed_write_pending",
	"a Write has named no key, neither by Changes nor by Also: nothing is invalidated":             "write_without_keys",
	"a write goes on without a hold on its keys":                                                   "write_without_hold",
	"a load failed and an old value is served":                                                     "load_failed_old_served",
	"a read failed and a value kept in this process is served":                                     "read_failed_kept_served",
	"a refresh failed": "refresh_failed",
	"a value cannot be encoded and stays in this process":                                                                       "value_not_encoded",
	"a value comes back from JSON as another one, and stays in this process":                                                    "value_altered",
	"a value is larger than MaxValue and stays in this process":                                                                 "value_too_large",
	"a value has more tags than there is room for, and stays in this process":                                                   "value_too_many_tags",
	"redis holds a value of another type than this process stores: raise Schema by one whenever the type of the values changes": "value_of_other_type",
	"the filter denies a key that exists: fill it anew, with ids as RebuildFilter makes them":                                   "filter_wrong",
	"the filter was not rebuilt, and is tried again":                                                                            "filter_rebuild_failed",
	"the redis client is closed: close it after the cache":                                                                      "redis_client_closed",
	"the filter has not learned of a key, and may deny it until its next Rebuild":                                               "filter_add_failed",
	"changes are lost to the feed: the caches are cleared, and their filters need a rebuild":                                    "feed_lost",
	"a cache was cleared and its filter needs a rebuild, since it is not known from where on to follow the feed for it":         "feed_without_position",
	"a filter may deny rows that exist, and has no method Invalidate: fill it anew":                                             "filter_without_invalidate",
	"redis has lost the position of a feed, which is followed from where this process has read it to":                           "feed_position_lost",
	"following a feed has failed and is tried again":                                                                            "feed_failed",
	"a feed is followed again":                                                                                                        "feed_back",
	"a filter does not confirm the rows of a feed, and is told again":                                                                 "feed_filter_behind",
	"a filter confirms the rows of a feed again":                                                                                      "feed_filter_back",
	"changes are confirmed to the feed that too few replicas of redis know of":                                                        "feed_replicas_missing",
	"texts that are different keys are one value of a column; the feed tells the one that is stored":                                  "feed_keys_collate",
	"the publication has been made or changed":                                                                                        "feed_publication_made",
	"the making of the slot waits for the transactions that are under way in the database":                                            "feed_slot_waits_for_transactions",
	"the feed begins when the commits that wait for a standby have ended":                                                             "feed_waits_for_standby",
	"a commit that waits for a standby just now would be missed: the feed's user may not see it; GRANT pg_read_all_stats to it":       "feed_standby_not_visible",
	"the database keeps much of its log for the slot: the feed is followed too slowly, or a transaction has been open for long":       "feed_log_retained",
	"binlog_transaction_compression is ON: the feed takes a compressed transaction into memory whole":                                 "feed_compressed",
	"a row does not fit what the table is now, or is not whole in the log: the whole table counts as changed":                         "feed_row_unfit",
	"the rows of a table cannot be told: each change of it clears its caches":                                                         "feed_table_unknown",
	"a table cannot be followed: its caches are cleared once a minute and at each change until it can; the other tables are followed": "feed_table_not_followed",
	"the tables that cannot be followed could not be looked at again":                                                                 "feed_table_not_looked_at",
	"a value is stale that nobody has invalidated":                                                                                    "audit_stale",
	"a value is old after a change":                                                                                                   "ledger_old",
	"a value could not be compared with the source":                                                                                   "audit_failed",
	"the feed of a Ledger has failed and is opened again":                                                                             "ledger_feed_failed",
	"the cache would answer otherwise than the source":                                                                                "shadow_differs",
	"the codec panicked": "codec_panicked",
	"a hook panicked":    "hook_panicked",
	"redis holds something that is no value of this cache; it is replaced":                                   "value_foreign",
	"a key is of another type than a value or a lease; it is not touched and not cached":                     "key_foreign",
	"the key of a cache's clears is of another type; it is not touched, and Clear and ClearTags do not work": "clears_foreign",
	"settings of the redis client that hurt":                                                                 "client_settings",
	"without redis these options protect no write":                                                           "options_without_redis",
	"the options of the redis client cannot be seen; it must not cache reads nor send them to replicas":      "client_hidden",
	"a lease was lost":                                                                                            "lock_lost",
	"a renewal failed and is tried again":                                                                         "lock_renewal_failed",
	"an Unlock was not confirmed and goes on in the background":                                                   "lock_unlock_pending",
	"no messages from Redis, waiters poll every 250ms":                                                            "lock_messages_silent",
	"this Redis may evict locks, use one with maxmemory-policy noeviction":                                        "lock_may_be_evicted",
	"this Redis has no replicas, but Options.Replicas is set":                                                     "lock_without_replicas",
	"redis does not reply, the filter abstains until it does":                                                     "filter_without_redis",
	"filter does not follow redis and abstains when it is behind":                                                 "filter_behind",
	"filter is new, or redis has lost it: it abstains until the next Rebuild":                                     "filter_needs_rebuild",
	"Rebuild waits before it reads the ids, as other processes may have to add again what they have added lately": "filter_rebuild_waits",
	"filter follows redis again":                                                                                  "filter_back",
	"filter holds more ids than its Capacity":                                                                     "filter_full",
	"a loader has given a version of more than 64 bytes, which is not stored":                                     "version_too_long",
	"a call of cacheadmin":                                                                                        "admin_call",
	"a call of cacheadmin failed":                                                                                 "admin_call_failed",
	"a rebuild of a filter that cacheadmin began has ended":                                                       "admin_rebuild_ended",
	"a rebuild of a filter that cacheadmin began has failed":                                                      "admin_rebuild_failed",
	"a call of cacheadmin was refused":                                                                            "admin_call_refused",
}

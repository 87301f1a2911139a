package main

import "slices"

// contenders say how each contender is set up: by its defaults, or as its own documentation recommends. What it is
// called with stands in the peer_ files.
var contenders = []struct{ name, settings string }{
	{"levee", "default options over a go-redis client with default options; where there is to be no tier in the process, `Local.MaxBytes: -1`; room in it for the keys of A"},
	{asItIs, "a `localcache` whose MaxBytes is the size of the table; \"levee\" has the MaxBytes with which its heap is as large, here"},
	{"levee + filter", "the same with a `bloom.New` filter of default options that knows all rows"},
	{"levee unlimited", "levee with a breaker of `MaxConcurrent: -1`"},
	{"go-redis GET", "client with default options; on a miss a load and a `SET`, as in most services"},
	{"go-redis GETRANGE", "the same with the command that levee reads with"},
	{"go-redis AutoPipeline", "the same through `Client.AutoPipeline()` with default options"},
	{"go-redis MGET", "as go-redis GET"},
	{"pipeline", "one `Pipeline()` of go-redis for each batch"},
	{"pipeline of 64", "the same for 64 keys"},
	{"rueidis GET", "client with default options, which pipelines by itself; on a miss a load and a `SET`"},
	{"rueidis DoCache", "the same with its client-side cache, which holds 128 MiB by default"},
	{"rueidis MGET", "its helper `MGet`"},
	{"go-redis/cache", "`Once`; where there is a tier in the process, `NewTinyLFU(keys, time.Minute)` as in its README"},
	{"go-zero", "`cache.NewNode` of core/stores/cache and `Take`, default options"},
	{"rockscache", "`NewDefaultOptions`"},
	{"rockscache 10 ms", "`LockSleep` of 10 ms in place of 100 ms"},
	{"rockscache strong", "`StrongConsistency`"},
	{"sturdyc", "10 shards and 10 % evictions as in its README, missing records stored; it has no Redis"},
	{"sturdyc early", "the same with `WithEarlyRefreshes` from a quarter of the TTL on"},
	{"otter", "`MaximumSize`, `ExpiryWriting`, `Get` with a loader; it has no Redis"},
	{"ristretto", "ten counters a key, `BufferItems` 64, `IgnoreInternalCost`; no TTL"},
	{"ristretto TTL", "the same with a TTL, for which it looks at the clock"},
	{"bits-and-blooms", "`NewWithEstimates` behind an RWMutex"},
	{"one line", "a floor: all bits of an id in one cache line, see peer_filters.go"},
	{"redislock", "lease of 10 s, `LinearBackoff(100 * time.Millisecond)` as in its README"},
	{"redsync", "lease of 10 s, default delays, as many tries as it takes"},
	{"rueidislock", "`KeyMajority: 1`, lease of 10 s, else default options"},
	{"BLPOP", "a floor: a token in a list, lost with a holder that dies"},
	{"nothing", "answers at once: what the measuring takes"},
}

// settingsOf returns the lines of contenders that take part in the workloads.
func settingsOf(chosen []workload) (lines []string) {
	for _, c := range contenders {
		if slices.ContainsFunc(chosen, func(w workload) bool { return slices.Contains(w.contenders, c.name) }) {
			lines = append(lines, "- "+c.name+": "+c.settings)
		}
	}
	return lines
}

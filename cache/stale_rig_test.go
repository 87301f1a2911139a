package cache_test

import (
	"time"

	"github.com/levee-go/levee/cache"
)

// staleAfterASecond makes values stale after a second, for an hour.
func staleAfterASecond(o *cache.Options) {
	o.TTL, o.StaleWhileRevalidate, o.StaleIfError, o.EarlyRefresh, o.Jitter = time.Second, time.Hour, -1, -1, -1
}

// fallbackAfterASecond makes values fallbacks after a second, for an hour.
func fallbackAfterASecond(o *cache.Options) {
	o.TTL, o.StaleWhileRevalidate, o.StaleIfError, o.Jitter = time.Second, -1, time.Hour, -1
}

// onlyFallback gives values a TTL of a second, after which they are served for errors only.
func onlyFallback(o *cache.Options) {
	o.TTL, o.Jitter, o.EarlyRefresh = time.Second, -1, -1
	o.StaleWhileRevalidate, o.StaleIfError = -1, time.Hour
}

// pastTTL sleeps until values with a TTL of a second are past it.
func pastTTL() { time.Sleep(1100 * time.Millisecond) }

var overRedis = []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real"}}

// withRedis are the cells in which a value past its TTL is found in Redis.
var withRedis = []cell{{redis: "mini"}, {redis: "mini", local: true}}

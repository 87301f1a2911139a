//go:build race

package localcache_test

const raceDetector = true

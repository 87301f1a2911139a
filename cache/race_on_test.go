//go:build race

package cache_test

const raceDetector = true // makes sync.Pool forget, and so ristretto allocate

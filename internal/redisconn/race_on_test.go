//go:build race

package redisconn_test

const raceDetector = true // makes sync.Pool forget, and so go-redis allocate

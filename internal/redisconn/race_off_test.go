//go:build !race

package redisconn_test

const raceDetector = false

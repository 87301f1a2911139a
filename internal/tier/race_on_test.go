//go:build race

package tier_test

const raceDetector = true

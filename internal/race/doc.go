// Package race tells tests whether the race detector is built in. What computes takes it ten
// times as long, and has nothing to find; sync.Pool forgets under it, so ristretto and go-redis
// allocate. Such a test skips if [Detector], and "make test" runs the tests that use Detector
// once more without it.
package race

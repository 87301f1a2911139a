// Package cost measures what a hit of package cache costs: tests count its allocations, and
// benchmarks compare its time with a bare ristretto and a bare go-redis. It is apart from the tests of
// package cache, which the compiler takes minutes for, since it is built without the race detector.
package cost

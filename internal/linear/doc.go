// Package linear checks what no single test can: that reads and writes of a key,
// by many caches in several processes, are seen in one order. Its tests record
// histories of package mutexrebuild on a real Redis and give them to porcupine.
package linear

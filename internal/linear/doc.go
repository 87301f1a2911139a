// Package linear checks what no single test can: that reads and writes of a key,
// by many callers in several processes, are seen in one order. Its tests record
// histories on a real Redis, of package cache without its local tier and of package
// mutexrebuild by itself, and give them to porcupine. Short histories, which have to show what
// is broken in a mutant on any machine, are recorded in bubbles of testing/synctest.
package linear

// Package soak runs the whole library for a long time, in several processes, with
// something broken every now and then, and watches what must not change: "make soak".
package soak

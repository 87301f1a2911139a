//go:build !race

package race

// Detector reports whether the race detector is built in.
const Detector = false

package logonce

import "maps"

// Events returns the names of all lines.
func Events() map[string]string { return maps.Clone(events) }

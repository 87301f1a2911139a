package names

import "testing"

func TestOfNames(t *testing.T) {
	t.Run("it's (a|b)", func(t *testing.T) {
		t.Run("c$", func(*testing.T) {})
		t.Run("c$ not this", func(*testing.T) {})
	})
	t.Run("not this", func(*testing.T) {})
}

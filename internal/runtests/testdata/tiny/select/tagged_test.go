//go:build tagged

package select_test

import "testing"

func TestMain(m *testing.M) { m.Run() }

func TestIsOnlyThereWithATag(*testing.T) {}

func Example() {
	// Output:
}

//go:build !tagged

package select_test

import "testing"

func TestIsOnlyThereWithoutTheTag(*testing.T) {}

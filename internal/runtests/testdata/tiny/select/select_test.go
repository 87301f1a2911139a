package select_test

import "testing"

const word = true // which TestDoesNot does not use

func TestUsesTheWord(t *testing.T) {
	if !word {
		t.Skip()
	}
}

func TestDoesNot(*testing.T) {}

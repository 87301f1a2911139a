package known

import "testing"

func TestIsKnown(t *testing.T) { t.Error("as is known") }

func TestIsKnownForSomethingElse(t *testing.T) { t.Error("as is not known") }

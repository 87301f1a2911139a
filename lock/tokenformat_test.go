package lock

import (
	"errors"
	"fmt"
	"testing"
)

func FuzzToken(f *testing.F) {
	f.Add("l1.W10")
	f.Add(string(makeToken([]part{{[]byte("a"), []byte("levee:l1:m:{a}"), "m", 1, "x:1", 1}})))
	f.Fuzz(func(t *testing.T, text string) {
		parts, err := Token(text).parts()
		if err != nil {
			if !errors.Is(err, ErrBadToken) {
				t.Error(err)
			}
			return
		}
		again, err := makeToken(parts).parts()
		if err != nil || fmt.Sprint(again) != fmt.Sprint(parts) {
			t.Errorf("%v became %v, %v", parts, again, err)
		}
	})
}

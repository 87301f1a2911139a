// Package tiny has one safeguard, and an embedded file.
package tiny

import (
	_ "embed"
	"errors"
)

//go:embed greeting.txt
var greeting string

func divide(a, b int) (int, error) {
	if b == 0 {
		return 0, errors.New("division by zero")
	}
	return a / b, nil
}

//go:build !unix

package linear

import (
	"errors"
	"os"
)

func shared(*os.File, int) ([]byte, error) {
	return nil, errors.New("the processes of a history share memory, which takes mmap")
}

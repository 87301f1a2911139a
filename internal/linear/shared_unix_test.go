//go:build unix

package linear

import (
	"os"
	"syscall"
)

// shared maps a file into memory, which all processes that do so share.
func shared(file *os.File, bytes int) ([]byte, error) {
	return syscall.Mmap(int(file.Fd()), 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
}

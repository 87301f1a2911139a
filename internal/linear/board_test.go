package linear

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"unsafe"
)

// A board is memory that all processes of a test share. It is the database, a
// version for each key, and the clock.
//
// The clock is a counter from which everybody draws the number of each call and
// each return. What returned before something else was called has the lower
// number, in whatever processes the two happened. Clocks that tell the time are
// not that exact: they have ticks, and the one that processes agree on can be set.
type board struct {
	cells []int64
	far   bool // each way of a query takes its time, and not only now and then
}

const boardKeys = 1 << 12

// Behind the keys stands the log of the database: how many changes it has, up to where
// they are confirmed, and the key of each.
const (
	logChanges = 1 << 18
	logBegin   = 1 + boardKeys
	boardCells = logBegin + 2 + logChanges
)

func newBoard(t *testing.T) (path string) {
	path = filepath.Join(t.TempDir(), "board")
	file, err := os.Create(path)
	if err == nil {
		err = file.Truncate(boardCells * 8)
		_ = file.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func openBoard(path string) (*board, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	memory, err := shared(file, boardCells*8)
	if err != nil {
		return nil, err
	}
	return &board{cells: unsafe.Slice((*int64)(unsafe.Pointer(&memory[0])), boardCells)}, nil
}

// tick is the time. No two calls get the same.
func (b *board) tick() int64 { return atomic.AddInt64(&b.cells[0], 1) }

// read returns the version of a key.
func (b *board) read(key int) int64 { return atomic.LoadInt64(&b.cells[1+key]) }

// write commits the next version of a key, and returns it.
func (b *board) write(key int) int64 { return atomic.AddInt64(&b.cells[1+key], 1) }

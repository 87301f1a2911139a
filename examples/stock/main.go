// Stock sells a limited stock from two processes: with locks that sell more than there is, with package lock, and with a stock in several
// segments that as many buyers can be served from at a time.
//
//	go run ./stock
//
// It needs no server: it embeds a Redis, and keeps its records in SQLite. Against real servers:
//
//	go run ./stock -redis 127.0.0.1:6379 -postgres postgres://user@127.0.0.1/shop
//
// On these it works only under a key prefix and in a schema of its own, and removes both at the end.
//
// To read it as a lesson: warehouse.go is what has to be done by one at a time, recipes.go how one tries to keep to that.
package main

import (
	"time"

	"github.com/levee-go/levee/examples/internal/stage"
)

func main() { stage.Main(play(fullScale)) }

// A scale says how large the rush is.
type scale struct {
	Stock     int
	Segments  int           // of the segmented stock; they divide it
	Buyers    int           // in each process, of one item each
	Customers int           // of these at a time
	Work      time.Duration // that a sale takes besides the database
	Slow      time.Duration // that it takes once in each process
	Lease     time.Duration // of the locks; less than Slow
}

var fullScale = scale{
	Stock: 100, Segments: 5, Buyers: 150, Customers: 24, Work: 10 * time.Millisecond,
	Slow: 600 * time.Millisecond, Lease: 400 * time.Millisecond,
}

func play(s scale) stage.Play[scale] {
	return stage.Play[scale]{
		Name:    "stock",
		About:   "A stock that more want to buy from than there is: in each of two processes once a sale takes longer than a lock's lease.",
		Scale:   s,
		Tables:  tables,
		Recipes: recipes,
		Columns: []string{"sold", "left"},
		Judge:   judge,
	}
}

// Coupon gives out a limited number of coupons, one to a user, from two processes: with the locks that everybody writes first, and with
// package lock.
//
//	go run ./coupon
//
// It needs no server: it embeds a Redis, and keeps its records in SQLite. Against real servers:
//
//	go run ./coupon -redis 127.0.0.1:6379 -postgres postgres://user@127.0.0.1/shop
//
// On these it works only under a key prefix and in a schema of its own, and removes both at the end.
//
// To read it as a lesson: coupons.go is what has to be done by one at a time, recipes.go how one tries to keep to that.
package main

import (
	"time"

	"github.com/levee-go/levee/examples/internal/stage"
)

func main() { stage.Main(play(fullScale)) }

// A scale says how large the rush is.
type scale struct {
	Coupons, Users int
	Customers      int           // at a time, in each process
	Work           time.Duration // that a claim takes besides the database: asking whether this user may have one
	Slow           time.Duration // that it takes now and then
	SlowEvery      int           // claims of a process, from the tenth on
	Lease          time.Duration // of the locks; less than Slow
	Patience       time.Duration // of all together, where a lock would keep them for ever
}

var fullScale = scale{
	Coupons: 50, Users: 80, Customers: 16, Work: 3 * time.Millisecond,
	Slow: 450 * time.Millisecond, SlowEvery: 30, Lease: 300 * time.Millisecond, Patience: 2 * time.Second,
}

func play(s scale) stage.Play[scale] {
	return stage.Play[scale]{
		Name:    "coupon",
		About:   "Coupons for some of the users, one each: every user asks in both processes, and some claims take longer than a lock's lease.",
		Scale:   s,
		Tables:  tables,
		Recipes: recipes,
		Columns: []string{"given", "counted", "got two"},
		Judge:   judge,
	}
}

// Reminder has two processes look again and again for reminders that are due, and send each: with a flag that is set afterwards, with one
// that is set before, and with lock.Once. In some of the recipes a process dies while it sends.
//
//	go run ./reminder
//
// It needs no server: it embeds a Redis, and keeps its records in SQLite. Against real servers:
//
//	go run ./reminder -redis 127.0.0.1:6379 -postgres postgres://user@127.0.0.1/shop
//
// On these it works only under a key prefix and in a schema of its own, and removes both at the end.
//
// To read it as a lesson: recipes.go is how one keeps from sending twice, outbox.go what is sent.
package main

import (
	"time"

	"github.com/levee-go/levee/examples/internal/stage"
)

func main() { stage.Main(play(fullScale)) }

// A scale says how much there is to do.
type scale struct {
	Reminders int
	Poll      time.Duration // between two looks of a process
	Work      time.Duration // that sending one takes
	Patience  time.Duration // how long a process looks, if it is not all done before
	Lease     time.Duration // of the locks
}

var fullScale = scale{Reminders: 20, Poll: 20 * time.Millisecond, Work: 30 * time.Millisecond, Patience: 3 * time.Second, Lease: time.Second}

func play(s scale) stage.Play[scale] {
	return stage.Play[scale]{
		Name:    "reminder",
		About:   "Reminders that are due, which two processes find by polling, and of which each is to be sent once.",
		Scale:   s,
		Tables:  tables,
		Recipes: recipes,
		Columns: []string{"sent", "twice", "never"},
		Judge:   judge,
	}
}

// Luckydraw lets users draw who have so many draws left, and click twice: with a lock that is held too briefly, and with one that is not.
// Who clicks while the last click is being served is told so at once.
//
//	go run ./luckydraw
//
// It needs no server: it embeds a Redis, and keeps its records in SQLite. Against real servers:
//
//	go run ./luckydraw -redis 127.0.0.1:6379 -postgres postgres://user@127.0.0.1/shop
//
// On these it works only under a key prefix and in a schema of its own, and removes both at the end.
//
// To read it as a lesson: draws.go is what has to be done by one at a time for each user, recipes.go how one tries to keep to that.
package main

import (
	"time"

	"github.com/levee-go/levee/examples/internal/stage"
)

func main() { stage.Main(play(fullScale)) }

// A scale says how much is going on.
type scale struct {
	Users, Draws int           // that each of them has
	Clicks       int           // of each user, in each process
	Customers    int           // at a time, in each process
	Work         time.Duration // that a draw takes besides the database
	Commit       time.Duration // that a transaction takes to commit
}

var fullScale = scale{Users: 60, Draws: 2, Clicks: 20, Customers: 8, Work: 5 * time.Millisecond, Commit: 15 * time.Millisecond}

func play(s scale) stage.Play[scale] {
	return stage.Play[scale]{
		Name:    "luckydraw",
		About:   "Lucky draws, so many to a user: every user clicks again and again in both processes.",
		Scale:   s,
		Tables:  tables,
		Recipes: recipes,
		Columns: []string{"draws", "users < 0", "lowest"},
		Judge:   judge,
	}
}

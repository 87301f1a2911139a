// Package stage is what the examples about the lock share: each is a few recipes against the same trouble, played by two processes on one
// Redis and one database. An example says what the recipes are and what is right; this package starts the processes, and prints the table.
package stage

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/examples/internal/console"
	"github.com/levee-go/levee/examples/internal/servers"
)

// A Play is one example. S is its scale: how many take part, and for how long. It goes to the processes as JSON.
type Play[S any] struct {
	Name    string
	About   string // what it shows, in a sentence or two
	Scale   S
	Tables  []string // statements that make the tables
	Recipes []Recipe[S]
	Columns []string // of the table, before those that all examples have
	// Judge reads from the database what a recipe has done: the cells of the columns, and what is wrong, or "" if nothing is.
	Judge func(ctx context.Context, db *servers.Database, scale S) (cells []string, wrong string, err error)
}

// A Recipe is one way to keep order.
type Recipe[S any] struct {
	Name   string
	Naive  bool                                                                    // it is there to fail
	Reset  func(scale S) []string                                                  // statements that set the scene
	Serve  func(ctx context.Context, p *Process, scale S) (tally Tally, err error) // what each of the two processes does
	Deadly bool                                                                    // the first process dies on the way, and leaves the rest to the second
}

// A Result is one row of the table.
type Result struct {
	Recipe string
	Naive  bool
	Cells  []string
	Wrong  string
	Tally  Tally // of both processes
	Took   time.Duration
}

// Main is the main function of an example. It does not return.
func Main[S any](play Play[S]) {
	ChildMain(play)
	console.Main(play.Run)
}

// Run is Main with its surroundings as arguments. It returns 2 for a mistake in the flags and 1 for any other failure, which includes that
// a recipe went wrong that is not there to do so.
func (play Play[S]) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return console.Run(ctx, play.Name, args, stderr, play.parse, func(s settings) error {
		_, err := play.Perform(ctx, s.redis, s.postgres, stdout)
		return err
	})
}

// settings are what the flags say.
type settings struct{ redis, postgres string }

func (play Play[S]) parse(args []string, stderr io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet(play.Name, flag.ContinueOnError)
	flags.StringVar(&s.redis, "redis", "", "use the Redis at this `address` (host:port or redis:// URL) instead of an embedded one")
	flags.StringVar(&s.postgres, "postgres", "", "use the PostgreSQL database of this `DSN` instead of SQLite")
	err = console.Parse(flags, args, play.About, stderr)
	return s, err
}

// Perform plays all recipes one after the other and prints a row for each.
func (play Play[S]) Perform(ctx context.Context, redisAddr, dsn string, out io.Writer) (results []Result, err error) {
	redis.SetLogger(servers.Silence{})
	began := time.Now()
	mark := fmt.Sprintf("%08x", rand.Uint32()) // so that examples on the same servers do not meet
	rdb, err := servers.OpenRedis(ctx, redisAddr, "levee-"+play.Name+"-"+mark)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rdb.Close()) }()
	db, err := servers.OpenDatabase(ctx, dsn, "levee_"+play.Name+"_"+mark)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for _, table := range play.Tables {
		if _, err := db.ExecContext(ctx, table); err != nil {
			return nil, err
		}
	}
	report := newReport(out, play.Columns)
	report.opening(play.About, db.Name, rdb.Name)
	for number := range play.Recipes {
		result, failure := play.recipe(ctx, number, rdb, db)
		if failure != nil {
			return results, fmt.Errorf("%s: %w", play.Recipes[number].Name, failure)
		}
		report.row(result)
		results = append(results, result)
		if result.Wrong != "" && !result.Naive {
			err = errors.Join(err, fmt.Errorf("%s: %s", result.Recipe, result.Wrong))
		}
	}
	report.closing(time.Since(began))
	return results, err
}

// recipe plays one recipe in two processes.
func (play Play[S]) recipe(ctx context.Context, number int, rdb *servers.Redis, db *servers.Database) (Result, error) {
	recipe := play.Recipes[number]
	for _, statement := range recipe.Reset(play.Scale) {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return Result{}, err
		}
	}
	scale, err := json.Marshal(play.Scale)
	if err != nil {
		return Result{}, err
	}
	part := part{
		Recipe: recipe.Name, Scale: scale, Database: db.Source, Redis: rdb.Address, Prefix: fmt.Sprintf("%s-%d", rdb.Prefix, number),
	}
	tally, took, err := perform(ctx, part, recipe.Deadly)
	if err != nil {
		return Result{}, err
	}
	cells, wrong, err := play.Judge(ctx, db, play.Scale)
	return Result{Recipe: recipe.Name, Naive: recipe.Naive, Cells: cells, Wrong: wrong, Tally: tally, Took: took}, err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/levee-go/levee/examples/internal/console"
	"github.com/levee-go/levee/examples/internal/servers"
)

// surroundings are what the drill runs against.
type surroundings struct {
	redis *servers.Redis
	store *Catalogue
}

// open starts or reaches the servers that the flags ask for.
func (s settings) open(ctx context.Context, r *report) (opened surroundings, err error) {
	mark := fmt.Sprintf("%08x", rand.Uint32()) // so that drills against the same servers do not meet
	defer console.During(r.progress, r.began, "starting", func() string { return "" })()
	if opened.redis, err = servers.OpenRedis(ctx, s.redis, "levee-drill-"+mark); err != nil {
		return opened, err
	}
	db, err := servers.OpenDatabase(ctx, s.postgres, "levee_drill_"+mark)
	if err != nil {
		return opened, errors.Join(err, opened.redis.Close())
	}
	if opened.store, err = newCatalogue(ctx, db, s.rows, s.size.database); err != nil {
		return opened, errors.Join(err, opened.redis.Close())
	}
	return opened, nil
}

// close takes away what open made.
func (s surroundings) close() error { return errors.Join(s.store.Close(), s.redis.Close()) }

// Command before is the service on sqlc, pgx and PostgreSQL before it has a cache.
package main

import (
	"context"
	"errors"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/levee-go/levee/examples/orm/internal/web"
	"github.com/levee-go/levee/examples/orm/sqlc/hoteldb"
)

type service struct {
	*hoteldb.Queries
	db *pgxpool.Pool
}

func main() {
	ctx, stop := web.Context()
	defer stop()
	db := web.Must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	defer db.Close()
	s := &service{Queries: hoteldb.New(db), db: db}
	web.Serve(ctx, web.Routes[hoteldb.Hotel]{Hotel: s.Hotel, InCity: s.InCity, Move: s.Move, Absent: absent})
}

func absent(err error) bool {
	return errors.Is(err, pgx.ErrNoRows)
}

// Move moves a hotel to another city.
func (s *service) Move(ctx context.Context, id int64, city string) error {
	return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		q := s.WithTx(tx)
		h, err := q.Lock(ctx, id)
		if err != nil {
			return err
		}
		return q.Move(ctx, hoteldb.MoveParams{ID: h.ID, City: city})
	})
}

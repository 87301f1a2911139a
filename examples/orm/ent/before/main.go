// Command before is the service on ent and PostgreSQL before it has a cache.
package main

import (
	"context"
	"database/sql"
	"os"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/levee-go/levee/examples/orm/ent/ent"
	"github.com/levee-go/levee/examples/orm/ent/ent/hotel"
	"github.com/levee-go/levee/examples/orm/internal/web"
)

type service struct {
	db *ent.Client
}

func main() {
	ctx, stop := web.Context()
	defer stop()
	db := web.Must(sql.Open("pgx", os.Getenv("DATABASE_URL")))
	s := &service{db: ent.NewClient(ent.Driver(entsql.OpenDB(dialect.Postgres, db)))}
	web.Serve(ctx, web.Routes[*ent.Hotel]{Hotel: s.Hotel, InCity: s.InCity, Move: s.Move, Absent: absent})
}

func absent(err error) bool {
	return ent.IsNotFound(err)
}

// Hotel returns a hotel, or an error for which ent.IsNotFound is true.
func (s *service) Hotel(ctx context.Context, id int64) (*ent.Hotel, error) {
	return s.db.Hotel.Get(ctx, id)
}

// InCity returns the hotels in a city.
func (s *service) InCity(ctx context.Context, city string) ([]*ent.Hotel, error) {
	return s.db.Hotel.Query().Where(hotel.City(city)).Order(hotel.ByID()).All(ctx)
}

// Move moves a hotel to another city.
func (s *service) Move(ctx context.Context, id int64, city string) error {
	tx, err := s.db.Tx(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	h, err := tx.Hotel.Query().Where(hotel.ID(id)).ForUpdate().Only(ctx)
	if err != nil {
		return err
	}
	if err := h.Update().SetCity(city).Exec(ctx); err != nil {
		return err
	}
	return tx.Commit()
}

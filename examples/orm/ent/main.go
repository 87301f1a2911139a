// Command ent is the service on ent and PostgreSQL, with a cache and an outbox.
// Without the cache it is the program in before.
package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strconv"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/outbox"
	"github.com/levee-go/levee/examples/orm/ent/ent"
	"github.com/levee-go/levee/examples/orm/ent/ent/hotel"
	"github.com/levee-go/levee/examples/orm/internal/web"
)

type service struct {
	db *ent.Client

	hotels  *cache.Cache[int64, *ent.Hotel]
	inCity  *cache.Cache[string, []*ent.Hotel]
	changes *outbox.Outbox
}

func main() {
	ctx, stop := web.Context()
	defer stop()
	db := web.Must(sql.Open("pgx", os.Getenv("DATABASE_URL")))
	s := &service{db: ent.NewClient(ent.Driver(entsql.OpenDB(dialect.Postgres, db)))}
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})
	database := web.Must(breaker.New(breaker.Options{Name: "shop", MaxConcurrent: 20})) // loads at a time, in this process
	s.hotels = web.Must(cache.New(rdb, s.Hotel, cache.Options{Name: "hotel", Breaker: database, Codec: cache.JSON, IsNotFound: absent}))
	defer s.hotels.Close()
	s.inCity = web.Must(cache.New(rdb, s.InCity, cache.Options{Name: "hotels-in-city", Breaker: database, Codec: cache.JSON}))
	defer s.inCity.Close()
	s.changes = web.Must(outbox.New(db, outbox.Options{Dialect: outbox.PostgreSQL}))
	follow := func(ctx context.Context) error {
		return cache.Follow(ctx, s.changes, s.hotels.Route("hotel", nil), s.inCity.Route("city", nil))
	}
	web.Serve(ctx, web.Routes[*ent.Hotel]{Hotel: s.hotels.Get, InCity: s.inCity.Get, Move: s.write, Absent: absent}, follow)
}

func absent(err error) bool {
	return ent.IsNotFound(err) || errors.Is(err, cache.ErrNotFound)
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
	if err := errors.Join(cache.Also(ctx, s.inCity.Changes(h.City)),
		s.changes.Add(ctx, tx, "hotel", strconv.FormatInt(id, 10)), s.changes.Add(ctx, tx, "city", h.City, city)); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *service) write(ctx context.Context, id int64, city string) error {
	tx := func(ctx context.Context) error { return s.Move(ctx, id, city) }
	return cache.Committed(cache.Write(ctx, tx, s.hotels.Changes(id), s.inCity.Changes(city)))
}

// Command sqlc is the service on sqlc, pgx and PostgreSQL, with a cache that follows the database's log.
// Without the cache it is the program in before.
package main

import (
	"context"
	"errors"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/pgfeed"
	"github.com/levee-go/levee/examples/orm/internal/web"
	"github.com/levee-go/levee/examples/orm/sqlc/hoteldb"
)

type service struct {
	*hoteldb.Queries
	db *pgxpool.Pool

	hotels *cache.Cache[int64, hoteldb.Hotel]
	inCity *cache.Cache[string, []hoteldb.Hotel]
}

func main() {
	ctx, stop := web.Context()
	defer stop()
	db := web.Must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	defer db.Close()
	s := &service{Queries: hoteldb.New(db), db: db}
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})
	database := web.Must(breaker.New(breaker.Options{Name: "shop", MaxConcurrent: 20})) // loads at a time, in this process
	s.hotels = web.Must(cache.New(rdb, s.Hotel, cache.Options{Name: "hotel", Breaker: database}))
	defer s.hotels.Close()
	s.inCity = web.Must(cache.New(rdb, s.InCity, cache.Options{Name: "hotels-in-city", Breaker: database}))
	defer s.inCity.Close()
	source := web.Must(pgfeed.New(pgfeed.Options{Name: "hotels", URL: os.Getenv("FEED_URL"),
		Tables: []pgfeed.Table{{Name: "hotels", Columns: []string{"id", "city"}}}}))
	follow := func(ctx context.Context) error {
		return cache.Follow(ctx, source, s.hotels.Route("hotels", nil), s.inCity.Route("hotels", cities))
	}
	web.Serve(ctx, web.Routes[hoteldb.Hotel]{Hotel: s.hotels.Get, InCity: s.inCity.Get, Move: s.write, Absent: absent}, follow)
}

func absent(err error) bool {
	return errors.Is(err, pgx.ErrNoRows) || errors.Is(err, cache.ErrNotFound)
}

// Move moves a hotel to another city.
func (s *service) Move(ctx context.Context, id int64, city string) error {
	return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		q := s.WithTx(tx)
		h, err := q.Lock(ctx, id)
		if err != nil {
			return err
		}
		return errors.Join(cache.Also(ctx, s.inCity.Changes(h.City)), q.Move(ctx, hoteldb.MoveParams{ID: h.ID, City: city}))
	})
}

func (s *service) write(ctx context.Context, id int64, city string) error {
	tx := func(ctx context.Context) error { return s.Move(ctx, id, city) }
	return cache.Committed(cache.Write(ctx, tx, s.hotels.Changes(id), s.inCity.Changes(city)))
}

func cities(row feed.Row) ([]string, error) {
	if city, ok := row["city"]; ok && city == nil {
		return nil, nil // NULL: in no list
	}
	city, err := row.Text("city")
	return []string{city}, err
}

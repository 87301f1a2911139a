// Command mysql is the service on database/sql and MySQL or MariaDB, with a cache and an outbox.
// Without the cache it is the program in before.
package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"slices"
	"strconv"

	_ "github.com/go-sql-driver/mysql" // the driver "mysql"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/outbox"
	"github.com/levee-go/levee/examples/orm/internal/web"
)

// A Hotel is a row of the table hotels.
type Hotel struct {
	ID   int64
	Name string
	City string
}

type service struct {
	db *sql.DB

	hotels  *cache.Cache[int64, Hotel]
	inCity  *cache.Cache[string, []Hotel]
	changes *outbox.Outbox
}

func main() {
	ctx, stop := web.Context()
	defer stop()
	s := &service{db: web.Must(sql.Open("mysql", os.Getenv("DATABASE_DSN")))}
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})
	database := web.Must(breaker.New(breaker.Options{Name: "shop", MaxConcurrent: 20})) // loads at a time, in this process
	s.hotels = web.Must(cache.New(rdb, s.Hotel, cache.Options{Name: "hotel", Breaker: database}))
	defer s.hotels.Close()
	s.inCity = web.Must(cache.New(rdb, s.InCity, cache.Options{Name: "hotels-in-city", Breaker: database}))
	defer s.inCity.Close()
	s.changes = web.Must(outbox.New(s.db, outbox.Options{Dialect: outbox.MySQL}))
	follow := func(ctx context.Context) error {
		return cache.Follow(ctx, s.changes, s.hotels.Route("hotel", nil), s.inCity.Route("city", nil))
	}
	web.Serve(ctx, web.Routes[Hotel]{Hotel: s.hotels.Get, InCity: s.inCity.Get, Move: s.write, Absent: absent}, follow)
}

func absent(err error) bool {
	return errors.Is(err, sql.ErrNoRows) || errors.Is(err, cache.ErrNotFound)
}

// Hotel returns a hotel, or sql.ErrNoRows.
func (s *service) Hotel(ctx context.Context, id int64) (h Hotel, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT id, name, city FROM hotels WHERE id = ?", id).Scan(&h.ID, &h.Name, &h.City)
	return h, err
}

// InCity returns the hotels in a city, spelled as they have it: the key of the list, which a write of one of them names.
func (s *service) InCity(ctx context.Context, city string) (list []Hotel, err error) {
	rows, err := s.db.QueryContext(ctx, "SELECT id, name, city FROM hotels WHERE city = ? ORDER BY id", city)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var h Hotel
		if err := rows.Scan(&h.ID, &h.Name, &h.City); err != nil {
			return nil, err
		}
		list = append(list, h)
	}
	return slices.DeleteFunc(list, func(h Hotel) bool { return h.City != city }), rows.Err() // the collation finds oslo for Oslo
}

// Move moves a hotel to another city.
func (s *service) Move(ctx context.Context, id int64, city string) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	var old string
	if err := tx.QueryRowContext(ctx, "SELECT city FROM hotels WHERE id = ? FOR UPDATE", id).Scan(&old); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE hotels SET city = ? WHERE id = ?", city, id); err != nil {
		return err
	}
	if err := errors.Join(cache.Also(ctx, s.inCity.Changes(old)),
		s.changes.Add(ctx, tx, "hotel", strconv.FormatInt(id, 10)), s.changes.Add(ctx, tx, "city", old, city)); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *service) write(ctx context.Context, id int64, city string) error {
	tx := func(ctx context.Context) error { return s.Move(ctx, id, city) }
	return cache.Committed(cache.Write(ctx, tx, s.hotels.Changes(id), s.inCity.Changes(city)))
}

// Command gorm is the service on GORM and MariaDB or MySQL, with a cache that follows the database's log.
// Without the cache it is the program in before.
package main

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/redis/go-redis/v9"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/mysqlfeed"
	"github.com/levee-go/levee/examples/orm/internal/web"
)

// A Hotel is a row of the table hotels.
type Hotel struct {
	ID   int64
	Name string `gorm:"size:100"`
	City string `gorm:"size:100;index;not null"`
}

type service struct {
	db *gorm.DB

	hotels *cache.Cache[int64, Hotel]
	inCity *cache.Cache[string, []Hotel]
}

func main() {
	ctx, stop := web.Context()
	defer stop()
	s := &service{db: web.Must(gorm.Open(mysql.Open(os.Getenv("DATABASE_DSN")), &gorm.Config{TranslateError: true}))}
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})
	database := web.Must(breaker.New(breaker.Options{Name: "shop", MaxConcurrent: 20})) // loads at a time, in this process
	s.hotels = web.Must(cache.New(rdb, s.Hotel, cache.Options{Name: "hotel", Breaker: database, IsNotFound: absent}))
	defer s.hotels.Close()
	s.inCity = web.Must(cache.New(rdb, s.InCity, cache.Options{Name: "hotels-in-city", Breaker: database}))
	defer s.inCity.Close()
	source := web.Must(mysqlfeed.New(mysqlfeed.Options{Name: "hotels", Addr: os.Getenv("DATABASE_ADDR"), User: "levee", Password: os.Getenv("FEED_PASSWORD"),
		Tables: []mysqlfeed.Table{{Name: "shop.hotels", Columns: []string{"id", "city"}}}}))
	follow := func(ctx context.Context) error {
		return cache.Follow(ctx, source, s.hotels.Route("shop.hotels", nil), s.inCity.Route("shop.hotels", cities))
	}
	web.Serve(ctx, web.Routes[Hotel]{Hotel: s.hotels.Get, InCity: s.inCity.Get, Move: s.write, Absent: absent}, follow)
}

func absent(err error) bool {
	return errors.Is(err, gorm.ErrRecordNotFound) || errors.Is(err, cache.ErrNotFound)
}

// Hotel returns a hotel, or gorm.ErrRecordNotFound.
func (s *service) Hotel(ctx context.Context, id int64) (h Hotel, err error) {
	err = s.db.WithContext(ctx).Take(&h, id).Error
	return h, err
}

// InCity returns the hotels in a city, spelled as they have it: the key of the list, which a write of one of them names.
func (s *service) InCity(ctx context.Context, city string) (list []Hotel, err error) {
	err = s.db.WithContext(ctx).Where("city = ?", city).Order("id").Find(&list).Error
	return slices.DeleteFunc(list, func(h Hotel) bool { return h.City != city }), err // the collation finds oslo for Oslo
}

// Move moves a hotel to another city.
func (s *service) Move(ctx context.Context, id int64, city string) error {
	return s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		var h Hotel
		if err := tx.Clauses(clause.Locking{Strength: "UPDATE"}).Take(&h, id).Error; err != nil {
			return err
		}
		return errors.Join(cache.Also(ctx, s.inCity.Changes(h.City)), tx.Model(&h).Update("city", city).Error) // Update changes h.City too
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

// Command before is the service on GORM and MariaDB or MySQL before it has a cache.
package main

import (
	"context"
	"errors"
	"os"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

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
}

func main() {
	ctx, stop := web.Context()
	defer stop()
	s := &service{db: web.Must(gorm.Open(mysql.Open(os.Getenv("DATABASE_DSN")), &gorm.Config{TranslateError: true}))}
	web.Serve(ctx, web.Routes[Hotel]{Hotel: s.Hotel, InCity: s.InCity, Move: s.Move, Absent: absent})
}

func absent(err error) bool {
	return errors.Is(err, gorm.ErrRecordNotFound)
}

// Hotel returns a hotel, or gorm.ErrRecordNotFound.
func (s *service) Hotel(ctx context.Context, id int64) (h Hotel, err error) {
	err = s.db.WithContext(ctx).Take(&h, id).Error
	return h, err
}

// InCity returns the hotels in a city.
func (s *service) InCity(ctx context.Context, city string) (list []Hotel, err error) {
	err = s.db.WithContext(ctx).Where("city = ?", city).Order("id").Find(&list).Error
	return list, err
}

// Move moves a hotel to another city.
func (s *service) Move(ctx context.Context, id int64, city string) error {
	return s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		var h Hotel
		if err := tx.Clauses(clause.Locking{Strength: "UPDATE"}).Take(&h, id).Error; err != nil {
			return err
		}
		return tx.Model(&h).Update("city", city).Error
	})
}

// Command before is the service on database/sql and MySQL or MariaDB before it has a cache.
package main

import (
	"context"
	"database/sql"
	"errors"
	"os"

	_ "github.com/go-sql-driver/mysql" // the driver "mysql"

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
}

func main() {
	ctx, stop := web.Context()
	defer stop()
	s := &service{db: web.Must(sql.Open("mysql", os.Getenv("DATABASE_DSN")))}
	web.Serve(ctx, web.Routes[Hotel]{Hotel: s.Hotel, InCity: s.InCity, Move: s.Move, Absent: absent})
}

func absent(err error) bool {
	return errors.Is(err, sql.ErrNoRows)
}

// Hotel returns a hotel, or sql.ErrNoRows.
func (s *service) Hotel(ctx context.Context, id int64) (h Hotel, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT id, name, city FROM hotels WHERE id = ?", id).Scan(&h.ID, &h.Name, &h.City)
	return h, err
}

// InCity returns the hotels in a city.
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
	return list, rows.Err()
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
	return tx.Commit()
}

package main

import (
	"context"
	"errors"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/levee-go/levee/cache"
)

// Add inserts a hotel and sets its ID.
func (s *service) Add(ctx context.Context, h *Hotel) error {
	return s.transaction(ctx, func(ctx context.Context, tx *gorm.DB) error {
		if err := tx.Create(h).Error; err != nil {
			return err
		}
		return s.changed(ctx, *h) // after Create, which sets h.ID: a reader may have cached that id as absent
	})
}

// Remove deletes a hotel.
func (s *service) Remove(ctx context.Context, id int64) error {
	return s.transaction(ctx, func(ctx context.Context, tx *gorm.DB) error {
		var h Hotel
		if err := tx.Clauses(clause.Locking{Strength: "UPDATE"}).Take(&h, id).Error; err != nil {
			return err
		}
		return errors.Join(s.changed(ctx, h), tx.Delete(&h).Error)
	})
}

// MoveAll moves all hotels of a city to another.
func (s *service) MoveAll(ctx context.Context, from, to string) error {
	return s.transaction(ctx, func(ctx context.Context, tx *gorm.DB) error {
		var rows []Hotel
		if err := tx.Clauses(clause.Locking{Strength: "UPDATE"}).Find(&rows, "city = ?", from).Error; err != nil || len(rows) == 0 {
			return err
		}
		return errors.Join(s.changed(ctx, rows...), tx.Model(&rows).Update("city", to).Error) // of these rows, by their ids
	}, s.inCity.Changes(to))
}

// changed names to the Write of ctx what is cached of rows: before an update or a delete, and after an insert.
func (s *service) changed(ctx context.Context, rows ...Hotel) error {
	var ids []int64
	var cities []string
	for _, h := range rows {
		ids, cities = append(ids, h.ID), append(cities, h.City)
	}
	return cache.Also(ctx, s.hotels.Changes(ids...), s.inCity.Changes(cities...))
}

// transaction runs do in a transaction, within a Write of changes and of what do adds to them.
func (s *service) transaction(ctx context.Context, do func(context.Context, *gorm.DB) error, changes ...cache.Changes) error {
	return cache.Committed(cache.Write(ctx, func(ctx context.Context) error {
		return s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return do(ctx, tx) })
	}, changes...))
}

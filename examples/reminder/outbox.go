package main

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/levee-go/levee/examples/internal/servers"
	"github.com/levee-go/levee/examples/internal/stage"
)

var tables = []string{
	"CREATE TABLE reminder (id BIGINT PRIMARY KEY, done BIGINT NOT NULL)",
	"CREATE TABLE mail (reminder BIGINT NOT NULL)",
}

func fill(s scale) []string {
	statements := []string{"DELETE FROM mail", "DELETE FROM reminder"}
	for id := range s.Reminders {
		statements = append(statements, fmt.Sprintf("INSERT INTO reminder (id, done) VALUES (%d, 0)", id+1))
	}
	return statements
}

// A sender sends reminders.
type sender struct {
	*stage.Process
	scale scale
	sent  int
}

// poll has send called for whatever is due, until nothing is or patience ends. How send keeps from sending twice is its own affair.
func (s *sender) poll(ctx context.Context, send func(ctx context.Context, id int) error) (stage.Tally, error) {
	ctx, cancel := context.WithTimeout(ctx, s.scale.Patience)
	defer cancel()
	return stage.Crowd(ctx, 1, 1, func(ctx context.Context, _ int) error {
		for {
			due, err := s.due(ctx)
			if err != nil || len(due) == 0 {
				return orNil(ctx, err)
			}
			for _, id := range due {
				if err := send(ctx, id); err != nil {
					return orNil(ctx, err)
				}
			}
			if err := stage.Think(ctx, s.scale.Poll); err != nil {
				return nil // what is not done by now is never done
			}
		}
	}), nil
}

// orNil returns err, unless patience has ended.
func orNil(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *sender) due(ctx context.Context) (ids []int, err error) {
	rows, err := s.DB.QueryContext(ctx, "SELECT id FROM reminder WHERE done = 0 ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// send sends a mail. The process that is to die does so while it prepares its third.
func (s *sender) send(ctx context.Context, id int) error {
	if err := stage.Think(ctx, s.scale.Work); err != nil {
		return err
	}
	if s.sent++; s.Doomed && s.sent == 3 {
		s.Die()
	}
	_, err := s.DB.ExecContext(ctx, "INSERT INTO mail (reminder) VALUES ($1)", id)
	return err
}

// done says that a reminder is not due any more.
func (s *sender) done(ctx context.Context, id int) error {
	_, err := s.DB.ExecContext(ctx, "UPDATE reminder SET done = 1 WHERE id = $1", id)
	return err
}

// judge counts the mails.
func judge(ctx context.Context, db *servers.Database, s scale) (cells []string, wrong string, err error) {
	var sent, reminders int
	var twice sql.NullInt64
	row := db.QueryRowContext(ctx, "SELECT count(*), count(DISTINCT reminder) FROM mail")
	if err := row.Scan(&sent, &reminders); err != nil {
		return nil, "", err
	}
	if err := db.QueryRowContext(ctx, "SELECT sum(n) FROM (SELECT 1 AS n FROM mail GROUP BY reminder HAVING count(*) > 1) AS more").Scan(&twice); err != nil {
		return nil, "", err
	}
	never := s.Reminders - reminders
	switch {
	case twice.Int64 > 0:
		wrong = fmt.Sprintf("%d sent twice", twice.Int64)
	case never > 0:
		wrong = fmt.Sprintf("%d never sent", never)
	}
	return []string{strconv.Itoa(sent), strconv.FormatInt(twice.Int64, 10), strconv.Itoa(never)}, wrong, nil
}

const forAsLong = time.Hour // as a reminder may be found again

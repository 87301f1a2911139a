package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/examples/orm/internal/hoteltest"
	"github.com/levee-go/levee/internal/redistest"
)

// open makes two processes of the service over a table that GORM has made. No feed helps a write that names too little.
func open(t *testing.T) (writer, reader *service) {
	d := hoteltest.MariaDB(t, server, hoteltest.Setup{})
	dsn, _ := strings.CutPrefix(d.Env[0], "DATABASE_DSN=")
	db := redistest.Must(gorm.Open(mysql.Open(dsn), &gorm.Config{TranslateError: true}))
	t.Cleanup(func() { _ = redistest.Must(db.DB()).Close() })
	if err := db.Migrator().DropTable(&Hotel{}); err != nil {
		t.Fatal(err)
	}
	if err := db.AutoMigrate(&Hotel{}); err != nil {
		t.Fatal(err)
	}
	addr := redistest.Start(t).Addr()
	process := func() *service {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = rdb.Close() })
		s := &service{db: db}
		s.hotels = redistest.Must(cache.New(rdb, s.Hotel, cache.Options{Name: "hotel", IsNotFound: absent}))
		t.Cleanup(func() { _ = s.hotels.Close() })
		s.inCity = redistest.Must(cache.New(rdb, s.InCity, cache.Options{Name: "hotels-in-city"}))
		t.Cleanup(func() { _ = s.inCity.Close() })
		return s
	}
	return process(), process()
}

// shows describes what a process serves of some hotels and cities.
func (s *service) shows(ctx context.Context, ids []int64, cities ...string) string {
	var all []string
	for _, id := range ids {
		h, err := s.hotels.Get(ctx, id)
		switch {
		case absent(err):
			all = append(all, "-")
		case err != nil:
			all = append(all, err.Error())
		default:
			all = append(all, h.City)
		}
	}
	for _, city := range cities {
		list, err := s.inCity.Get(ctx, city)
		if err != nil {
			return err.Error()
		}
		var names []string
		for _, h := range list {
			names = append(names, h.Name)
		}
		all = append(all, fmt.Sprint(city, names))
	}
	return strings.Join(all, " ")
}

// A hotel that was read before it existed, one that is deleted, and those of a city that is renamed: the process that
// wrote sees each change at once, and another one soon.
func TestInsertsDeletesAndUpdatesOfManyRowsAreSeen(t *testing.T) {
	writer, reader := open(t)
	ctx := t.Context()
	ids := []int64{1, 2, 3}
	wants := func(want string) {
		t.Helper()
		if got := writer.shows(ctx, ids, "Oslo", "Rome"); got != want {
			t.Fatalf("the process that wrote shows\n%s, want\n%s", got, want)
		}
		redistest.Eventually(t, 10*time.Second, "the other process shows "+want, func() bool { return reader.shows(ctx, ids, "Oslo", "Rome") == want })
	}
	wants("- - - Oslo[] Rome[]")
	for i, h := range []Hotel{{Name: "Bristol", City: "Oslo"}, {Name: "Astoria", City: "Oslo"}, {Name: "Ritz", City: "Rome"}} {
		if err := writer.Add(ctx, &h); err != nil || h.ID != ids[i] {
			t.Fatalf("hotel %d: %v", h.ID, err)
		}
		wants([]string{"Oslo - - Oslo[Bristol] Rome[]", "Oslo Oslo - Oslo[Bristol Astoria] Rome[]", "Oslo Oslo Rome Oslo[Bristol Astoria] Rome[Ritz]"}[i])
	}
	if err := writer.MoveAll(ctx, "Oslo", "Rome"); err != nil {
		t.Fatal(err)
	}
	wants("Rome Rome Rome Oslo[] Rome[Bristol Astoria Ritz]")
	if err := writer.MoveAll(ctx, "Lima", "Rome"); err != nil {
		t.Errorf("no hotel is there: %v", err)
	}
	if err := writer.Remove(ctx, 2); err != nil {
		t.Fatal(err)
	}
	wants("Rome - Rome Oslo[] Rome[Bristol Ritz]")
	if err := writer.Remove(ctx, 2); !absent(err) {
		t.Errorf("it is deleted already: %v", err)
	}
}

// A reader may look for the new row between its insert and the commit: it finds none, and the cache must not keep that.
func TestAReaderBeforeTheCommitDoesNotKeepTheAbsence(t *testing.T) {
	writer, reader := open(t)
	ctx := t.Context()
	h := Hotel{Name: "Bristol", City: "Oslo"}
	err := writer.transaction(ctx, func(inside context.Context, tx *gorm.DB) error {
		if err := tx.Create(&h).Error; err != nil {
			return err
		}
		if err := writer.changed(inside, h); err != nil {
			return err
		}
		for _, s := range []*service{reader, writer, reader} {
			if got := s.shows(ctx, []int64{h.ID}, "Oslo"); got != "- Oslo[]" {
				t.Errorf("before the commit: %s", got)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := writer.hotels.Get(ctx, h.ID); err != nil || got != h {
		t.Errorf("%v, %v", got, err)
	}
	redistest.Eventually(t, 10*time.Second, "the other process shows it", func() bool { return reader.shows(ctx, []int64{h.ID}, "Oslo") == "Oslo Oslo[Bristol]" })
}

// The default collation finds Oslo by oslo. A list is of one spelling, so a write of a row names the list that has it.
func TestAListIsOfOneSpelling(t *testing.T) {
	writer, _ := open(t)
	ctx := t.Context()
	var found []Hotel
	for _, city := range []string{"Oslo", "oslo", "Osló"} {
		if err := writer.Add(ctx, &Hotel{Name: "in " + city, City: city}); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.db.Find(&found, "city = ?", "OSLO ").Error; err != nil || len(found) != 3 {
		t.Fatalf("the collation takes them for different: %v, %v", found, err)
	}
	if got := writer.shows(ctx, nil, "Oslo", "oslo", "OSLO", "Oslo "); got != "Oslo[in Oslo] oslo[in oslo] OSLO[] Oslo []" {
		t.Error(got)
	}
	if err := writer.MoveAll(ctx, "OSLO", "Lima"); err != nil {
		t.Fatal(err)
	}
	if got := writer.shows(ctx, nil, "Oslo", "oslo", "Lima"); got != "Oslo[] oslo[] Lima[in Oslo in oslo in Osló]" {
		t.Error(got)
	}
}

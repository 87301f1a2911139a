package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/mysqlfeed"
	"github.com/levee-go/levee/examples/orm/internal/hoteltest"
	"github.com/levee-go/levee/internal/redistest"
)

// A House is cached with its rooms. Of its gorm.Model, DeletedAt makes a delete an UPDATE.
type House struct {
	gorm.Model
	Name  string `gorm:"size:100"`
	Rooms []Room
}

// A Room is a row of another table, with the key of its house.
type Room struct {
	ID      uint
	HouseID uint
	Name    string `gorm:"size:100"`
}

// What GORM preloads into a value changes with rows of another table: a route leads from these to the value's key. A
// delete that GORM makes an UPDATE needs nothing, since Take finds no such row.
func TestAPreloadedChildAndASoftDeleteAreFollowed(t *testing.T) {
	d := hoteltest.MariaDB(t, server, hoteltest.Setup{Statements: slices.Concat(feedsUser, []string{"GRANT SELECT ON shop.* TO 'levee'@'%'"})})
	dsn, _ := strings.CutPrefix(d.Env[0], "DATABASE_DSN=")
	addr, _ := strings.CutPrefix(d.Env[1], "DATABASE_ADDR=")
	db := redistest.Must(gorm.Open(mysql.Open(dsn+"?parseTime=true"), &gorm.Config{TranslateError: true}))
	t.Cleanup(func() { _ = redistest.Must(db.DB()).Close() })
	if err := db.AutoMigrate(&House{}, &Room{}); err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	houses := redistest.Must(cache.New(rdb, func(ctx context.Context, id uint) (h House, err error) {
		err = db.WithContext(ctx).Preload("Rooms").Take(&h, id).Error
		return h, err
	}, cache.Options{Name: "house", IsNotFound: absent}))
	source := redistest.Must(mysqlfeed.New(mysqlfeed.Options{Name: "houses", Addr: addr, User: "levee", Password: "secret",
		Tables: []mysqlfeed.Table{{Name: "shop.houses"}, {Name: "shop.rooms", Columns: []string{"id", "house_id"}}}}))
	ofRoom := func(row feed.Row) ([]uint, error) {
		id, err := row.Int("house_id")
		return []uint{uint(id)}, err
	}
	ended := make(chan error)
	go func() {
		ended <- cache.Follow(t.Context(), source, houses.Route("shop.houses", nil), houses.Route("shop.rooms", ofRoom))
	}()
	t.Cleanup(func() { // after the test's context has ended
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		_ = houses.Close()
	})
	redistest.Eventually(t, 30*time.Second, "the feed is followed", func() bool { return houses.Stats().Follow.Following })

	house, other := House{Name: "Bristol", Rooms: []Room{{Name: "attic"}}}, House{Name: "Astoria"}
	for _, step := range []struct {
		change func() *gorm.DB // by a program without levee
		rooms  string          // of house afterwards; -: it is absent
	}{
		{func() *gorm.DB { return db.Create([]*House{&house, &other}) }, "attic"},
		{func() *gorm.DB { return db.Create(&Room{HouseID: house.ID, Name: "cellar"}) }, "attic cellar"},
		{func() *gorm.DB { return db.Model(&Room{}).Where("name = ?", "attic").Update("name", "loft") }, "loft cellar"},
		{func() *gorm.DB { return db.Model(&Room{}).Where("name = ?", "loft").Update("house_id", other.ID) }, "cellar"},
		{func() *gorm.DB { return db.Delete(&Room{}, "name = ?", "cellar") }, ""},
		{func() *gorm.DB { return db.Delete(&house) }, "-"},
	} {
		if err := step.change().Error; err != nil {
			t.Fatal(err)
		}
		redistest.Eventually(t, 10*time.Second, "the house shows "+step.rooms, func() bool {
			h, err := houses.Get(t.Context(), house.ID)
			if absent(err) {
				return step.rooms == "-"
			}
			var names []string
			for _, r := range h.Rooms {
				names = append(names, r.Name)
			}
			return err == nil && strings.Join(names, " ") == step.rooms
		})
	}
	if stats := houses.Stats(); stats.Altered != 0 {
		t.Errorf("JSON alters %d values", stats.Altered)
	}
}

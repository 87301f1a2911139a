package main

import (
	"slices"
	"sync"
	"testing"

	"gorm.io/gorm/schema"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/examples/orm/internal/hoteltest"
	"github.com/levee-go/levee/internal/dbtest"
)

var server = &dbtest.Shared{Start: dbtest.MariaDB}

func TestMain(m *testing.M) { hoteltest.Main(m, main, server) }

func TestHotels(t *testing.T) {
	hoteltest.Run(t, hoteltest.MariaDB(t, server, hoteltest.Setup{Statements: slices.Concat(feedsUser, []string{"GRANT SELECT ON shop.hotels TO 'levee'@'%'"})}))
}

var feedsUser = []string{
	"CREATE OR REPLACE USER 'levee'@'%' IDENTIFIED BY 'secret'",
	"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'levee'@'%'",
}

// A table that GORM makes has no NULL there, and one of another make does not stop the feed at it.
func TestNoCityIsNULL(t *testing.T) {
	table, err := schema.Parse(&Hotel{}, new(sync.Map), schema.NamingStrategy{})
	if err != nil || !table.LookUpField("City").NotNull {
		t.Errorf("GORM makes a column that may be NULL: %v", err)
	}
	if keys, err := cities(feed.Row{"city": nil}); err != nil || len(keys) != 0 {
		t.Errorf("%q, %v", keys, err)
	}
	if keys, err := cities(feed.Row{"city": "Oslo"}); err != nil || len(keys) != 1 || keys[0] != "Oslo" {
		t.Errorf("%q, %v", keys, err)
	}
	if _, err := cities(feed.Row{}); err == nil {
		t.Error("a column that the feed was not told to report is no NULL")
	}
}

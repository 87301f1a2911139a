package main

import (
	"testing"

	"github.com/levee-go/levee/cache/outbox"
	"github.com/levee-go/levee/examples/orm/internal/hoteltest"
	"github.com/levee-go/levee/internal/dbtest"
)

var server = &dbtest.Shared{Start: dbtest.Postgres}

func TestMain(m *testing.M) { hoteltest.Main(m, main, server) }

func TestHotels(t *testing.T) {
	hoteltest.Run(t, hoteltest.PostgreSQL(t, server, hoteltest.Outbox(outbox.PostgreSQL)))
}

package main

import (
	"testing"

	"github.com/levee-go/levee/examples/orm/internal/hoteltest"
	"github.com/levee-go/levee/internal/dbtest"
)

var server = &dbtest.Shared{Start: dbtest.Postgres}

func TestMain(m *testing.M) { hoteltest.Main(m, main, server) }

func TestHotels(t *testing.T) {
	hoteltest.Run(t, hoteltest.PostgreSQL(t, server, hoteltest.Setup{Statements: []string{
		"CREATE ROLE levee LOGIN REPLICATION",
		"ALTER TABLE hotels REPLICA IDENTITY FULL",
		"CREATE PUBLICATION levee_hotels FOR TABLE hotels WITH (publish_via_partition_root = true)",
	}}))
}

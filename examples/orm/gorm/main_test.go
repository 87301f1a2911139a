package main

import (
	"testing"

	"github.com/levee-go/levee/examples/orm/internal/hoteltest"
	"github.com/levee-go/levee/internal/dbtest"
)

var server = &dbtest.Shared{Start: dbtest.MariaDB}

func TestMain(m *testing.M) { hoteltest.Main(m, main, server) }

func TestHotels(t *testing.T) {
	hoteltest.Run(t, hoteltest.MariaDB(t, server, hoteltest.Setup{Statements: []string{
		"ALTER TABLE hotels MODIFY city varchar(100) COLLATE utf8mb4_nopad_bin NOT NULL",
		"CREATE OR REPLACE USER 'levee'@'%' IDENTIFIED BY 'secret'",
		"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'levee'@'%'",
		"GRANT SELECT ON shop.hotels TO 'levee'@'%'",
	}}))
}

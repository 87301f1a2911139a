// Package ent is the client of the table hotels, generated from package schema.
package ent

//go:generate go tool ent generate --feature sql/lock,sql/execquery ./schema

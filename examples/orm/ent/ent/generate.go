package ent

//go:generate go tool ent generate --feature sql/lock,sql/execquery ./schema

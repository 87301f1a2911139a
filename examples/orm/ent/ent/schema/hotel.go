// Package schema is what the code in package ent is generated from.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/schema/field"
	"entgo.io/ent/schema/index"
)

// A Hotel is a row of the table hotels.
type Hotel struct{ ent.Schema }

// Fields are the columns beside id.
func (Hotel) Fields() []ent.Field {
	return []ent.Field{field.Int64("id"), field.String("name"), field.String("city")}
}

// Indexes are those beside the primary key.
func (Hotel) Indexes() []ent.Index { return []ent.Index{index.Fields("city")} }

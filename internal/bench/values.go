package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Keys are those of a table of products.
const keyPrefix = "product:"

// keysOf returns the keys of the ids from 0 on.
func keysOf(n int) []string { return keysFrom(0, n) }

// keysFrom returns the keys of n ids.
func keysFrom(first, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = keyPrefix + strconv.Itoa(first+i)
	}
	return keys
}

func idOf(key string) int {
	id, err := strconv.Atoi(strings.TrimPrefix(key, keyPrefix))
	if err != nil {
		panic(err)
	}
	return id
}

// A kind is a type of values. Each value tells the id of its key, so that every answer can be checked.
type kind[V any] struct {
	make   func(id int) V
	id     func(V) int
	encode func(V) ([]byte, error) // for contenders that keep bytes
	decode func([]byte) (V, error)
}

// right reports whether an answer is that of a key.
func (k kind[V]) right(v V, err error, id int) bool { return err == nil && k.id(v) == id }

// wrong is the error for an answer that is not right.
func (k kind[V]) wrong(v V, err error, id int) error {
	return fmt.Errorf("for %d the answer was that of %d, error %v", id, k.id(v), err)
}

// raw are values of 200 bytes.
var raw = kind[[]byte]{
	make: func(id int) []byte { return binary.BigEndian.AppendUint64(make([]byte, 0, 200), uint64(id))[:200] },
	id: func(b []byte) int {
		if len(b) != 200 {
			return -1
		}
		return int(binary.BigEndian.Uint64(b))
	},
	encode: func(b []byte) ([]byte, error) { return b, nil },
	decode: func(b []byte) ([]byte, error) { return b, nil },
}

// A product is a row of some 200 bytes in JSON.
type product struct {
	ID    int      `json:"id"`
	Name  string   `json:"name"`
	Price int64    `json:"price"`
	Stock int      `json:"stock"`
	Tags  []string `json:"tags"`
	Text  string   `json:"text"`
}

var structs = kind[product]{
	make: func(id int) product {
		return product{id, "Lamp " + strconv.Itoa(id), 4999, id % 100, []string{"lamp", "living room"}, strings.Repeat("bright ", 12)}
	},
	id: func(p product) int {
		if p.Price != 4999 || len(p.Tags) != 2 {
			return -1
		}
		return p.ID
	},
	encode: func(p product) ([]byte, error) { return json.Marshal(p) },
	decode: func(b []byte) (p product, err error) { err = json.Unmarshal(b, &p); return p, err },
}

//go:build !gozero

package main

import "errors"

const withGoZero = false

// go-zero comes with three hundred packages that most builds of this module, as those of the tests, can do without.
func openGoZero[V any](opening[V]) (reader[V], error) {
	return nil, errors.New("go-zero needs a build with -tags gozero")
}

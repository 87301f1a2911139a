// Package clients holds docs/operations.md to its word on redis clients. Its tests run
// the packages over each client of that page's table, on real servers.
package clients

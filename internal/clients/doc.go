// Package clients holds docs/reference/clients.md to its word on redis clients. Its tests run
// the packages over each client of that page's table, on real servers.
package clients

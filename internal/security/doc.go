// Package security holds SECURITY.md to its word. Its tests run the packages on a
// Redis whose access rules are those of that page, no more and no less; look
// whether the tests that it names are there; and look at how scripts are made.
package security

// Package bench measures levee's lock beside other locks over Redis, in one run and on one real redis-server. It is a module of its own,
// so that a user of levee does not download the others. It has nothing to import; see README.md for how to run it.
package bench

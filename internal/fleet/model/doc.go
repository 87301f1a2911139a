// Package model is a model of levee's protocol: of what stands in Redis, of what each process
// knows, and of the steps by which readers, writers and messages change them. It imports
// nothing of what it describes. Its tests go through all orders of these steps for a few readers
// and writers, with timeouts, deaths and lost messages, and check after each step what package
// cache promises.
//
// Each safeguard of the protocol can be left out. Then a promise is broken, and the test shows by
// which steps. docs/internals/protocol.md tells the same in words.
package model

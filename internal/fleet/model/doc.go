// Package model is a model of levee's protocol: of the state in Redis, of the state of each
// process, and of the steps by which readers, writers and messages change them. It imports
// none of the code that it describes. Its tests go through all orders of these steps for a few
// readers and writers, with timeouts, deaths and lost messages, and check the promises of package
// cache after each step.
//
// Each safeguard of the protocol can be left out. Then a promise is broken, and the test shows by
// which steps. docs/internals/protocol.md describes the protocol in words.
package model

// Package drivertest has both sides of package driver for tests: Backend and Session, a GPU that
// has memory and waits but computes nothing, and Host, a worker that remembers what it was told.
//
// Session methods are called as a worker calls them, from one goroutine; Finish may be called from
// any.
package drivertest

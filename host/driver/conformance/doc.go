// Package conformance holds the tests that every driver.Backend must pass alike: the software GPU
// on any machine, the NVIDIA driver where there is one. It talks to a Session as a worker does,
// operation by operation.
package conformance

// Package cudatest is a stand-in for the driver library's entry points that put work on streams: it
// does nothing, takes its time at random, and remembers who called what in which order. Tests of
// host/driver/cuda use it where there is no GPU.
package cudatest

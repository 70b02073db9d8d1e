// Package meter is what a session does, in numbers: one page that its worker writes and the device
// process reads.
//
// The consumer's counters are plain 64-bit stores, because they lie on the path of every launch;
// the failures', which other goroutines count too, are atomic. A reader sees each counter as it is
// at some moment.
//
// A worker can write anything. Readers clamp and clean, and nothing but what people are shown
// depends on it.
package meter

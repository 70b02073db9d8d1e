// Package policy decides which virtual GPUs may submit work to one GPU. It is plain arithmetic: no
// clock, no input or output, no goroutine. Its owner calls it with the time and with what the
// sessions report, and carries out the grants.
//
// # What it does
//
//   - One virtual GPU that wants the GPU, without a cap: it is free. No fence, no count, no bound on what it has in flight.
//   - Several: exclusive slices. Who has got the least GPU time for its weight goes next (stride scheduling: time held divided
//     by weight). A slice ends after its quantum, or when its holder has nothing more to do; the next begins when the GPU has
//     finished the holder's work. Work in flight is bounded, so that this is soon. A kernel that takes longer is charged, and
//     paid back by the slices of the others. After Patience the next begins beside it, and the GPU's own time slicing
//     parts the time; each is then charged its part.
//   - One that has used far less than its share of late (a session where somebody types) does not wait for anybody: its
//     gate stays open while it is quiet, and when it begins to submit, the holder's gate closes until it is quiet again. While
//     such a virtual GPU has been seen within Calm, others have little work in flight.
//   - A cap is a bucket that fills with the cap's part of the time, and empties with measured GPU time. Who has an empty bucket
//     waits until there is enough in it for a slice, also when nobody else wants the GPU.
//
// The time charged for a slice is that by this package's clock, from grant to drained, not what the
// worker says: the GPU was nobody else's. For caps it is the busy time that the worker measured,
// never more than the clock says. A worker's words follow from what a guest's kernels can write; so
// the driver's account is compared with both over seconds (account.go).
package policy

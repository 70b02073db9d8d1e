// Package daemontest plays the other sides of causewayd in tests: a device process (Device, which a
// test binary becomes when it is started like `causeway device`), a scheduler, and a host's GPUs
// (Machine).
package daemontest

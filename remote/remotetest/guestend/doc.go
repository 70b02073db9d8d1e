// Package guestend has the guest library's own ends of a session (guest/libcuda/session, in C) pass
// the suite that every carrier has to pass: what programs in a VM load, where remotetest's other
// guests are written in Go from the description alone.
//
// The library is loaded into the test's process (guest/libcuda/session/tests/end.c), and has one
// session at a time. For RDMA it loads libibverbs itself, as in a VM: a machine's own, or the one
// in guest/libcuda/session/tests/verbs, whose queue pairs lead from one end in a process to
// another.
package guestend

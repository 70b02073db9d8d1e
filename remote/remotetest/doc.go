// Package remotetest has the guest's end of the carriers of sessions, in Go, and the one suite of
// tests that every carrier must pass. What a carrier is made of is remote's interfaces; nothing
// above them may tell carriers apart.
package remotetest

// Package vf makes virtual functions of NICs, gives them to VMs or to relays, and takes them back.
//
// What there is stands in sysfs (scan.go); what a function is like is told and set by netlink, and
// where a driver has a tree of its own in sysfs, by that. Both changes pass the interface Kernel,
// of which System is the real one and package vftest has a fake; files are read below the folders
// of Options.
//
// Who has which function stands in one file, the Book, RUN/vfs.json. It outlives every process and
// ends with the host's boot, as functions do. Order of an assignment: the record, marked as
// unfinished; the function's settings; the VM; the record without the mark. What dies in between
// leaves a record with what the settings were before, which Release or ReleaseEnded puts back.
// Whether a VM still has a function is asked of the kernel, which knows who holds its VFIO device
// open: a VM that was killed needs no one to tell of it.
//
// A Manager may be used by several goroutines and processes: whoever changes something holds the
// lock of the Book, RUN/vfs.lock. Nobody who lists waits for it. No goroutine is started here.
package vf

// Package qmp plugs vGPUs into a QEMU that runs without libvirt, and out of it, through its QMP
// socket.
//
// A Machine is used by one goroutine; a second one of its own passes on QEMU's events, and ends
// with Close. QEMU serves one QMP client at a time. What QEMU answers is foreign text: it is
// decoded by its JSON types, and only looked at.
package qmp

// Command density measures how many vGPUs and sessions a host holds: it starts causewayd, attaches
// vGPUs as libvirt does, connects to each as QEMU does, and opens sessions as the guest library
// does, all from this process. It prints what vGPUs and sessions cost, and fails if attaching,
// detaching, starting and ending leaves anything behind.
//
// Each simulated VM (type vm) belongs to the goroutine that uses it, and has one more that renews
// its sessions' loans.
package main

// Package vhostuser is the backend side of the vhost-user protocol as QEMU 10 and 11 speak it
// (docs/interop/vhost-user.rst): messages, the guest's memory table, ring set-up, the dirty log and
// the device-state transfer. It knows nothing of what the rings carry.
//
// # Use
//
//	mem := vhostuser.NewMemory()
//	dev := ... // a Device, for example a virtio/fs.Device built on mem
//	srv := vhostuser.NewServer(mem, dev, vhostuser.Options{Logger: log})
//	ln, err := vhostuser.Listen("/run/causeway/vm1.sock")
//	err = srv.Serve(ctx, ln) // returns nil after ctx ends
//
// One front end is served at a time. After it disconnects (power-off, unplug, kill) the rings are
// stopped, memory is unmapped, Device.Disconnect is called and the socket accepts again.
//
// # Guest memory
//
// Memory maps guest-physical and front-end addresses to regions. A Region keeps the front end's
// file descriptor, so that other processes can map the same pages: Regions, Generation and Observer
// exist for them. An Observer hears of a region before it is unmapped. Within this process a View
// pins all regions of one moment: memory reached through a View stays mapped until View.Release,
// whatever the front end removes meanwhile.
//
// # Goroutines and locks
//
// Server.Serve owns the listener; one goroutine per connection reads messages and makes every call
// to Device and Observer. One further goroutine exists while device state is transferred. Lock
// order: Server.mu, Memory.changeMu, Memory.mu, Memory.logMu. Device is called with none of them
// held, Observer with changeMu: it may read the table, take Views and mark pages, but not change
// the table.
//
// # What hangs QEMU, and therefore never happens here
//
// QEMU's eventfds stay non-blocking (the flag belongs to the open file description, which QEMU
// shares); GET_VRING_BASE and SET_LOG_BASE are always answered; SET_DEVICE_STATE_FD is answered
// before any byte moves through its pipe.
package vhostuser

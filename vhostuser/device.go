package vhostuser

import "io"

// A Device is what a Server drives. All methods are called from one goroutine at a time, and must
// return promptly: QEMU holds its main lock while it waits for most of them.
type Device interface {
	// Queues is the number of virtqueues. It never changes.
	Queues() int

	// StartQueue starts processing a ring. Entries that are already available must be processed
	// without waiting for a kick. The queue owns cfg.Kick until StopQueue.
	StartQueue(index int, cfg QueueConfig) error

	// UpdateQueue tells a running queue of a new call or error eventfd or used-ring log address.
	// Only these fields of cfg may differ from those given to StartQueue.
	UpdateQueue(index int, cfg QueueConfig)

	// StopQueue completes every request taken from the ring, stops, and returns the index of the
	// next available entry. Afterwards the queue touches neither guest memory nor its eventfds. It
	// is called only for a running queue.
	StopQueue(index int) (next uint16)

	// Reset is RESET_DEVICE: the guest was powered on or rebooted. All queues are stopped already.
	Reset()

	// Disconnect says that the front end is gone. All queues are stopped already; memory is still
	// mapped.
	Disconnect()
}

// A StateHandler is a Device that can be migrated. Each method runs in its own goroutine, with all
// queues stopped, and must end when reading or writing fails. Load must not touch guest memory:
// there is none yet. After Save the device must be able to resume, because the migration may still
// fail.
type StateHandler interface {
	Save(w io.Writer) error
	Load(r io.Reader) error
}

// A Leaver is a Device that hears when the front end has gone, before the queues stop for the last
// time: nobody comes back to them.
type Leaver interface {
	Device
	Leave()
}

// QueueConfig describes a ring. Addresses are guest-physical and were valid when the front end set
// them; the consumer translates them again.
type QueueConfig struct {
	Size  int    // entries, a power of two, at most 32768
	Desc  uint64 // descriptor table
	Avail uint64 // driver area
	Used  uint64 // device area
	Base  uint16 // next available entry to process

	EventIdx     bool // VIRTIO_RING_F_EVENT_IDX was negotiated
	IndirectDesc bool // VIRTIO_RING_F_INDIRECT_DESC was negotiated

	LogUsed bool   // writes to the used ring are to be marked in the dirty log
	LogAddr uint64 // guest-physical address to mark for the start of the used ring

	Kick *EventFD // guest to device; never nil
	Call *EventFD // device to guest; nil while the guest polls
	Err  *EventFD // told of a broken ring; may be nil
}

package fs

import (
	"log/slog"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/vhostuser"
	"causeway/virtio"
)

// Ended is what is left of a Device whose process has died: requests that it had, and those to
// come, are answered with ENOTCONN, for a guest waits for every answer for ever, and can neither
// unmount nor let go of the device meanwhile. It implements vhostuser.Resumable.
type Ended struct {
	*virtio.Runner
	left func(queue int) *virtio.InFlight
}

var (
	_ vhostuser.Resumable = Ended{}
	_ virtio.Handler      = ending{}
)

// NewEnded makes one over mem, with as many request queues as the Device had, and what that kept by
// Options.Track.
func NewEnded(mem *vhostuser.Memory, requestQueues int, track func(queue int) *virtio.InFlight, log *slog.Logger) Ended {
	return Ended{virtio.NewRunner(mem, 1+requestQueues, ending{}, log), track}
}

// ResumeQueue implements vhostuser.Resumable.
func (e Ended) ResumeQueue(index int, cfg vhostuser.QueueConfig) error {
	return e.Runner.ResumeQueue(index, cfg, e.left(index))
}

// Reset implements vhostuser.Device.
func (Ended) Reset() {}

// Disconnect implements vhostuser.Device.
func (Ended) Disconnect() {}

// ending answers.
type ending struct{}

// Handle implements virtio.Handler.
func (ending) Handle(_ int, c *virtio.Chain) {
	b := aligned(inHeaderSize)
	if c.ReadAt(b, 0) < inHeaderSize {
		c.Complete(0)
		return
	}
	answer(c, as[fuse.InHeader](b).Unique, syscall.ENOTCONN, nil, 0)
}

// Quiesce implements virtio.Handler: nothing is kept.
func (ending) Quiesce(int) {}

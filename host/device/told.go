package device

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"causeway/virtio/fs"
)

// telling is the file system as QEMU has it. Of a VM's state that cannot be saved or loaded QEMU
// says that something broke; so what did is told to who moves the VM as well: here by Status, to
// the other host over the connection by which memory came ahead.
type telling struct {
	*fs.Device
	d *Device
}

// Save implements vhostuser.StateHandler.
func (t telling) Save(w io.Writer) error {
	err := t.Device.Save(w)
	why := ""
	if err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, os.ErrClosed) {
		// Else QEMU reads no further, and knows why.
		why = err.Error()
	}
	t.d.mu.Lock()
	t.d.saveEnd = why
	t.d.mu.Unlock()
	return err
}

// Load implements vhostuser.StateHandler.
func (t telling) Load(r io.Reader) error {
	err := t.Device.Load(r)
	if err != nil {
		t.d.in.tell(err)
	}
	return err
}

// tell has the source hear what is wrong with the state of its VM, if it is connected. It ends the
// pre-copy, which is of no use any more.
func (in *copyIn) tell(why error) {
	in.mu.Lock()
	to := in.to
	in.mu.Unlock()
	if to != nil {
		_ = answer(to, copyRefused, 0, why) // a source that is gone needs none
	}
}

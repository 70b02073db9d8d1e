package fs

import (
	"fmt"
	"io"
)

// stateMagic opens a saved state: name and version.
const stateMagic = "CWFS\x01\x00\x00\x00"

// Save implements vhostuser.StateHandler. The mount itself needs nothing: inodes are numbered by the tree, which is
// the same on both hosts. Open control files need their owners' help, which does not exist yet.
func (d *Device) Save(w io.Writer) error {
	if n := len(d.allHandles()); n > 0 {
		return fmt.Errorf("%d sessions: %w", n, errNotMigratable)
	}
	_, err := io.WriteString(w, stateMagic)
	return err
}

// Load implements vhostuser.StateHandler.
func (d *Device) Load(r io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(r, int64(len(stateMagic))+1))
	if err != nil {
		return fmt.Errorf("virtio-fs state: %w", err)
	}
	if string(b) != stateMagic {
		return fmt.Errorf("virtio-fs state: %d bytes that do not start with this version's mark", len(b))
	}
	return nil
}

package qmp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
)

// Migration is where and how a VM moves.
type Migration struct {
	URI       string        // where another QEMU waits, as its -incoming says
	Bandwidth uint64        // bytes a second; 0: as QEMU has it
	Downtime  time.Duration // that QEMU may plan with; 0: as QEMU has it
}

// ErrMigration says that a VM did not move. It runs on.
var ErrMigration = errors.New("QEMU did not move the VM")

// migrateLook is how often QEMU is asked how far it is.
const migrateLook = 200 * time.Millisecond

// migrateStatus is what query-migrate tells.
type migrateStatus struct {
	Status string `json:"status"`
	Why    string `json:"error-desc"`
	RAM    struct {
		Transferred uint64 `json:"transferred"`
		Total       uint64 `json:"total"`
		Remaining   uint64 `json:"remaining"`
	} `json:"ram"`
}

// ErrNotHere says that this QEMU has no VM that could move.
var ErrNotHere = errors.New("QEMU does not run this VM")

// Here reports whether the VM is this QEMU's to move: one that has left stands in it until it is
// ended, and one that is awaited is not there yet.
func (m *Machine) Here() error {
	var st struct {
		Status string `json:"status"` // RunState of QEMU's QMP reference
	}
	if err := m.run(qmp.Command{Execute: "query-status"}, &st); err != nil {
		return err
	}
	switch st.Status {
	case "postmigrate", "finish-migrate":
		return fmt.Errorf("%w: it has moved to another host, or is about to (%s): end this QEMU when it runs there", ErrNotHere, st.Status)
	case "inmigrate":
		return fmt.Errorf("%w: it is awaited from another host (%s)", ErrNotHere, st.Status)
	}
	return nil
}

// Migrate moves the VM. When it returns nil the other QEMU runs it, which has said so (return-path,
// which it must have, too), and this one stands for ever. With an error the VM runs on here. The
// end of ctx calls it off.
func (m *Machine) Migrate(ctx context.Context, how Migration, progress func(done, total uint64)) error {
	path := object{"capabilities": []object{{"capability": "return-path", "state": true}}}
	if err := m.run(qmp.Command{Execute: "migrate-set-capabilities", Args: path}, nil); err != nil {
		return err
	}
	parameters := object{}
	if how.Bandwidth != 0 {
		parameters["max-bandwidth"] = how.Bandwidth
	}
	if how.Downtime != 0 {
		parameters["downtime-limit"] = how.Downtime.Milliseconds()
	}
	if err := m.run(qmp.Command{Execute: "migrate-set-parameters", Args: parameters}, nil); err != nil {
		return err
	}
	if err := m.run(qmp.Command{Execute: "migrate", Args: object{"uri": how.URI}}, nil); err != nil {
		return err
	}
	t := time.NewTicker(migrateLook)
	defer t.Stop()
	over := ctx.Done()
	for {
		var st migrateStatus
		if err := m.run(qmp.Command{Execute: "query-migrate"}, &st); err != nil {
			return err
		}
		switch st.Status {
		case "completed":
			return nil
		case "failed":
			return fmt.Errorf("%w: %s", ErrMigration, st.Why)
		case "cancelled":
			return fmt.Errorf("%w: it was called off", ErrMigration)
		}
		progress(st.RAM.Total-min(st.RAM.Remaining, st.RAM.Total), st.RAM.Total)
		select {
		case <-over:
			over = nil
			if err := m.run(qmp.Command{Execute: "migrate_cancel"}, nil); err != nil {
				return err
			}
		case <-t.C:
		}
	}
}

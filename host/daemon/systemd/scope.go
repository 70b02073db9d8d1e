package systemd

import (
	"context"
	"fmt"

	"github.com/coreos/go-systemd/v22/dbus"
	"github.com/coreos/go-systemd/v22/unit"
	godbus "github.com/godbus/dbus/v5"

	"causeway/host/sandbox/cgroup"
)

// Slice is the slice of all scopes.
const Slice = "causeway.slice"

// Bus is what is used of systemd's D-Bus interface. *dbus.Conn is one.
type Bus interface {
	StartTransientUnitContext(ctx context.Context, name, mode string, properties []dbus.Property, ch chan<- string) (int, error)
	Close()
}

// Scopes makes a transient scope for each process. The zero value speaks to the system's manager.
type Scopes struct {
	// Connect makes a connection; nil: to the system's manager. Connections are not kept, since
	// scopes are rare.
	Connect func(ctx context.Context) (Bus, error)
}

// UnitName is the name of a scope: parts joined by -, in each of which what a unit's name cannot
// hold is escaped.
func UnitName(parts ...string) string {
	name := "causeway"
	for _, p := range parts {
		name += "-" + unit.UnitNameEscape(p)
	}
	return name + ".scope"
}

// Place moves a process into a scope of its own. The scope ends with its last process; its memory
// of failures too (CollectMode), so that the name is free again. Its control group is the process's
// to divide (Delegate).
func (s *Scopes) Place(ctx context.Context, name, description string, pid int, l cgroup.Limits) error {
	connect := s.Connect
	if connect == nil {
		connect = func(ctx context.Context) (Bus, error) { return dbus.NewSystemConnectionContext(ctx) }
	}
	bus, err := connect(ctx)
	if err != nil {
		return fmt.Errorf("reach systemd: %w", err)
	}
	defer bus.Close()
	done := make(chan string, 1)
	_, err = bus.StartTransientUnitContext(ctx, name, "fail", append([]dbus.Property{
		dbus.PropDescription(description),
		dbus.PropSlice(Slice),
		dbus.PropPids(uint32(pid)),
		property("Delegate", true),
		property("CollectMode", "inactive-or-failed"),
		// When the host shuts down the VM goes first, by its own unit; then this is waited for a
		// moment only.
		property("TimeoutStopUSec", uint64(10e6)),
	}, limits(l)...), done)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("start %s: the job is %s", name, result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("start %s: %w", name, ctx.Err())
	}
}

// limits are those of systemd.resource-control(5).
func limits(l cgroup.Limits) []dbus.Property {
	const perCent = 10_000 // microseconds of a second
	var list []dbus.Property
	for _, p := range []struct {
		name  string
		value uint64
	}{
		{"MemoryMax", l.Memory}, {"MemoryHigh", l.High}, {"CPUQuotaPerSecUSec", uint64(l.CPU) * perCent}, {"CPUWeight", uint64(l.CPUWeight)}, {"TasksMax", uint64(l.Processes)},
	} {
		if p.value != 0 {
			list = append(list, property(p.name, p.value))
		}
	}
	return list
}

func property(name string, v any) dbus.Property {
	return dbus.Property{Name: name, Value: godbus.MakeVariant(v)}
}

package claim

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"causeway/host/api"
	"causeway/host/limit"
)

// Driver is the name by which Kubernetes knows this driver.
const Driver = "gpu.causeway.dev"

// Capacities of a device.
const (
	Memory  = "memory"  // bytes of GPU memory, contexts included
	Compute = "compute" // hundredths of a GPU's time that are promised
)

// MostCompute is all of a GPU's time.
const MostCompute = 100

// Shares of claims when several want a GPU's time. All that compute is promised of a GPU is at most
// MostCompute, so a claim gets what was promised it less what those have for whom nothing was: half
// a hundredth each.
const (
	shareOfCompute = 100
	shareOfNothing = 50
)

// ErrClaim says that a claim cannot be served as it is written, however often it is tried.
var ErrClaim = errors.New("the claim cannot be served")

func wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrClaim, fmt.Errorf(format, args...))
}

// mostDevices bounds the devices of one claim; Kubernetes itself allows 32.
const mostDevices = 32

// Claim is a checked claim that has devices of this driver.
type Claim struct {
	id      ID
	devices []Device
	movesAs string // "": its VM is none of KubeVirt's
}

// ID names a claim: a name comes again, a UID does not.
type ID struct {
	Namespace, Name string
	UID             types.UID
}

func (i ID) String() string { return i.Namespace + "/" + i.Name }

// VM is what a claim of that UID is called where causewayd wants a VM's name.
func VM(uid types.UID) string { return api.ClaimPrefix + string(uid) }

// UIDOf is the claim that causewayd knows by that name; false: it is none's.
func UIDOf(vm string) (types.UID, bool) {
	uid, ok := strings.CutPrefix(vm, api.ClaimPrefix)
	return types.UID(uid), ok && uid != ""
}

// Device is one of a claim's.
type Device struct {
	Request, Pool, Device string
	ShareID               *types.UID
	Name                  string // of the vGPU within the claim: gpu0
	Memory                limit.Memory
	Compute               uint32
	Parameters            Parameters
	// Network: it is another host's, which gives a lease of it. Lease says where; nil: it is not
	// ready.
	Network bool
	Lease   *Lease
}

// ID of the claim.
func (c *Claim) ID() ID { return c.id }

// Devices of this driver, at least one.
func (c *Claim) Devices() []Device { return c.devices }

// Places are what the devices take in a container: of two claims with one in common the container
// would have one.
func (c *Claim) Places() []string {
	var list []string
	for i := range c.devices {
		d := &c.devices[i]
		if d.Parameters.Serves == VirtualMachine {
			list = append(list, "the socket "+path.Join(d.Parameters.Folder, d.Name+".sock"))
		} else {
			list = append(list, "the GPU of its programs")
		}
	}
	return list
}

// Share is what a device is of a GPU's time when several want it.
func (d *Device) Share() limit.Share {
	if d.Compute > 0 {
		return limit.Share(d.Compute * shareOfCompute)
	}
	return shareOfNothing
}

// Wish is what causewayd is asked for; gpu is the GPU's UUID.
func (c *Claim) Wish(d *Device, gpu string) api.Wish {
	share, cap, programs := d.Share(), limit.Cap(d.Parameters.Cap), d.Parameters.Serves == Container
	w := api.Wish{VM: VM(c.id.UID), Name: d.Name, GPU: gpu, Programs: &programs}
	if d.Lease != nil {
		w.Remote = d.Lease.Server
	}
	w.Memory, w.Share, w.Cap = &d.Memory, &share, &cap
	if n := limit.Sessions(d.Parameters.Sessions); n != 0 {
		w.Sessions = &n
	}
	if n := limit.HostMemory(d.Parameters.HostMemory); n != 0 {
		w.HostMemory = &n
	}
	if programs {
		// A claim is one tenant, whoever its programs run as.
		users := limit.UserSessions(limit.MostSessions)
		w.UserSessions = &users
	} else {
		w.Owner = d.Parameters.owner()
	}
	if d.Parameters.Migratable && !d.Network { // a GPU of another host stays where it is
		w.Migratable, w.MovesAs = &d.Parameters.Migratable, c.movesAs
	}
	return w
}

// Read checks a claim.
func Read(c *resourceapi.ResourceClaim) (*Claim, error) {
	if c.Status.Allocation == nil {
		return nil, wrong("nothing is allocated to it")
	}
	out := &Claim{id: ID{c.Namespace, c.Name, c.UID}, movesAs: MovesAs(c)}
	if err := CheckUID(c.UID); err != nil {
		return nil, err
	}
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		if r.Driver != Driver {
			continue
		}
		if len(out.devices) == mostDevices {
			return nil, wrong("more than %d devices", mostDevices)
		}
		d, err := readDevice(r, c.Status.Allocation.Devices.Config)
		if err == nil && OnNetwork(r) {
			d.Network = true
			d.Lease, err = leaseOf(c, r)
		}
		if err != nil {
			return nil, fmt.Errorf("request %s, device %s: %w", strconv.Quote(r.Request), strconv.Quote(r.Device), err)
		}
		d.Name = "gpu" + strconv.Itoa(len(out.devices))
		out.devices = append(out.devices, d)
	}
	return out, out.check()
}

// check judges the devices together.
func (c *Claim) check() error {
	containers := 0
	for i := range c.devices {
		if c.devices[i].Parameters.Serves == Container {
			containers++
		}
	}
	switch {
	case len(c.devices) == 0:
		return wrong("it has no device of %s", Driver)
	case containers > 1:
		return wrong("it has %d GPUs for a container, and programs there open a session with one: claim one, with more memory", containers)
	case containers != 0 && containers != len(c.devices):
		return wrong("some of its GPUs are for a container, others for a VM: use a claim for each")
	}
	return nil
}

// CheckUID: it is part of names of files. The API server makes them of hexadecimal digits and
// dashes.
func CheckUID(uid types.UID) error {
	if uid == "" || len(uid) > 50 || strings.Trim(string(uid), "0123456789abcdef-") != "" {
		return wrong("%q is no UID", string(uid))
	}
	return nil
}

func readDevice(r *resourceapi.DeviceRequestAllocationResult, configs []resourceapi.DeviceAllocationConfiguration) (Device, error) {
	d := Device{Request: r.Request, Pool: r.Pool, Device: r.Device, ShareID: r.ShareID}
	if r.AdminAccess != nil && *r.AdminAccess {
		return d, wrong("admin access is not offered: causewayd's own tools show what a GPU does")
	}
	memory, err := amount(r, Memory)
	if err != nil {
		return d, err
	}
	d.Memory = limit.Memory(memory)
	if memory == 0 {
		return d, wrong("%s is 0, which would be no limit", Memory)
	}
	if err := d.Memory.Check(); err != nil {
		return d, wrong("%w", err)
	}
	compute, err := amount(r, Compute)
	if err != nil {
		return d, err
	}
	if compute > MostCompute {
		return d, wrong("%s is %d: use 0 to %d, hundredths of a GPU's time", Compute, compute, MostCompute)
	}
	d.Compute = uint32(compute)
	for name := range r.ConsumedCapacity {
		if short := shortName(name); short != Memory && short != Compute {
			return d, wrong("a capacity %s is none of this driver's: use %s and %s", strconv.Quote(string(name)), Memory, Compute)
		}
	}
	d.Parameters, err = parametersFor(r.Request, configs)
	return d, err
}

// amount is what was counted of a capacity: a whole number that is not negative. Without an amount
// it is 0.
func amount(r *resourceapi.DeviceRequestAllocationResult, name string) (uint64, error) {
	var found *resource.Quantity
	for n, q := range r.ConsumedCapacity {
		if shortName(n) != name {
			continue
		}
		if found != nil {
			return 0, wrong("%s is named twice", name)
		}
		found = &q
	}
	if found == nil {
		return 0, nil
	}
	n, err := whole(found)
	if err != nil {
		return 0, wrong("%s: %w", name, err)
	}
	return n, nil
}

// shortName is a capacity's name without this driver's.
func shortName(n resourceapi.QualifiedName) string { return strings.TrimPrefix(string(n), Driver+"/") }

// whole is a quantity as a whole number.
func whole(q *resource.Quantity) (uint64, error) {
	n, ok := q.AsInt64()
	switch {
	case !ok:
		return 0, fmt.Errorf("%s is no whole number below 2^63", q.String())
	case n < 0:
		return 0, fmt.Errorf("%s is negative", q.String())
	}
	return uint64(n), nil
}

// forRequest reports whether parameters for these requests are for one's, which names its
// alternative behind a slash.
func forRequest(requests []string, name string) bool {
	parent, _, _ := strings.Cut(name, "/")
	return len(requests) == 0 || slices.Contains(requests, name) || slices.Contains(requests, parent)
}

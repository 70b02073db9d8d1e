package claim

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/json"

	"causeway/host/limit"
)

// APIVersion and Kind of parameters.
const (
	APIVersion = "causeway.dev/v1alpha1"
	Kind       = "VGPU"
)

// Who a vGPU serves.
const (
	Container      = "container" // CUDA programs in it, with no VM
	VirtualMachine = "vm"        // QEMU in it, by a vhost-user socket
)

// Parameters are the opaque ones of a claim or a class, which no quota counts: so none of them
// takes anything from others beyond what an administrator says. They are checked.
type Parameters struct {
	Serves     string
	Cap        uint32 // most hundredths of a GPU's time; 0: no cap
	Sessions   uint32 // CUDA processes at once; 0: the node's configuration says it
	HostMemory uint64 // bytes of the node's memory that requests may hold; 0: likewise
	// For a VM: the folder where QEMU's container has its sockets, each called as its vGPU
	// (gpu0.sock), and who may open them.
	Folder      string
	User, Group uint32
	// Migratable: a VM moves to another node with its programs and what they have of a GPU of its
	// node.
	Migratable bool
}

// Defaults for a VM: where QEMU finds sockets, and whom KubeVirt runs it as.
const (
	defaultFolder = "/run/causeway-vm"
	defaultUser   = 107
)

// text is how parameters are written.
type text struct {
	APIVersion string             `json:"apiVersion"`
	Kind       string             `json:"kind"`
	Serves     string             `json:"serves,omitempty"`
	Cap        *int64             `json:"cap,omitempty"`
	Sessions   *int64             `json:"sessions,omitempty"`
	HostMemory *resource.Quantity `json:"hostMemory,omitempty"`
	VM         *vmText            `json:"vm,omitempty"`
}

type vmText struct {
	Folder     string `json:"folder,omitempty"`
	RunAsUser  *int64 `json:"runAsUser,omitempty"`
	RunAsGroup *int64 `json:"runAsGroup,omitempty"`
	Migratable bool   `json:"migratable,omitempty"`
}

// fields names those of text for who has misspelt one.
const fields = "serves, cap, sessions, hostMemory, vm.folder, vm.runAsUser, vm.runAsGroup and vm.migratable"

// mostParameters bounds the text; Kubernetes allows 10 KiB.
const mostParameters = 10 << 10

// ParseParameters reads and checks the text of parameters.
func ParseParameters(b []byte) (Parameters, error) {
	var t text
	if len(b) > mostParameters {
		return Parameters{}, wrong("parameters of %d bytes, more than %d", len(b), mostParameters)
	}
	strict, err := json.UnmarshalStrict(b, &t)
	if err = errors.Join(append(strict, err)...); err != nil {
		switch {
		case errors.Is(err, resource.ErrFormatWrong): // of the only quantity that there is
			err = errors.New("hostMemory is no quantity: write 4Gi or 4096Mi")
		case len(strict) > 0:
			err = fmt.Errorf("%w: use %s, each once", err, fields)
		}
		return Parameters{}, wrong("parameters: %w", err)
	}
	if t.APIVersion != APIVersion || t.Kind != Kind {
		return Parameters{}, wrong("parameters of %q, kind %q: use %s, kind %s", t.APIVersion, t.Kind, APIVersion, Kind)
	}
	p, err := t.check()
	if err != nil {
		return Parameters{}, wrong("parameters: %w", err)
	}
	return p, nil
}

func (t *text) check() (Parameters, error) {
	p := Parameters{Serves: cmp.Or(t.Serves, Container)}
	if p.Serves != Container && p.Serves != VirtualMachine {
		return p, fmt.Errorf("serves: %q: use %s or %s", t.Serves, Container, VirtualMachine)
	}
	cap, err1 := number("cap", t.Cap, 1, limit.MostCap)
	sessions, err2 := number("sessions", t.Sessions, 1, limit.MostSessions)
	p.Cap, p.Sessions = cap, sessions
	var err3 error
	if t.HostMemory != nil {
		if p.HostMemory, err3 = whole(t.HostMemory); err3 == nil && p.HostMemory == 0 {
			err3 = errors.New("0 is no size")
		}
		err3 = errors.Join(err3, limit.HostMemory(p.HostMemory).Check())
		if err3 != nil {
			err3 = fmt.Errorf("hostMemory: %w", err3)
		}
	}
	return p, errors.Join(err1, err2, err3, t.checkVM(&p))
}

func (t *text) checkVM(p *Parameters) error {
	if p.Serves != VirtualMachine {
		if t.VM != nil {
			return fmt.Errorf("vm: it is for serves: %s", VirtualMachine)
		}
		return nil
	}
	v := t.VM
	if v == nil {
		v = &vmText{}
	}
	p.Folder = cmp.Or(v.Folder, defaultFolder)
	user, err1 := number("vm.runAsUser", v.RunAsUser, 0, mostID)
	group, err2 := number("vm.runAsGroup", v.RunAsGroup, 0, mostID)
	p.User, p.Group, p.Migratable = defaultUser, defaultUser, v.Migratable
	if v.RunAsUser != nil {
		p.User, p.Group = user, user
	}
	if v.RunAsGroup != nil {
		p.Group = group
	}
	return errors.Join(err1, err2, checkFolder(p.Folder))
}

// mostID is the largest id of a user that is none's.
const mostID = 1<<31 - 2

// checkFolder: it is a place in a container for sockets. Where else a mount would lie, the image's
// files are.
func checkFolder(f string) error {
	clean := path.Clean(f) == f && (strings.HasPrefix(f, "/run/") || strings.HasPrefix(f, "/var/run/"))
	for _, r := range f {
		clean = clean && (r > ' ' && r < 0x7f && r != ':' && r != '\\')
	}
	if !clean || len(f) > 90 {
		return fmt.Errorf("vm.folder: %s: use a path below /run or /var/run without spaces, colons and dots, of up to 90 bytes", strconv.Quote(f))
	}
	return nil
}

func number(name string, n *int64, least, most int64) (uint32, error) {
	switch {
	case n == nil:
		return 0, nil
	case *n < least || *n > most:
		return 0, fmt.Errorf("%s: %d: use %d to %d", name, *n, least, most)
	}
	return uint32(*n), nil
}

// owner is who may open a socket, as causewayd is told.
func (p *Parameters) owner() string { return fmt.Sprintf("%d:%d", p.User, p.Group) }

// parametersFor are those of a request: the class's, then the claim's in its place, within what the
// class says of the node. Two of one source contradict each other.
func parametersFor(request string, configs []resourceapi.DeviceAllocationConfiguration) (Parameters, error) {
	var found [2]*resourceapi.OpaqueDeviceConfiguration
	for i := range configs {
		c := &configs[i]
		if c.Opaque == nil || c.Opaque.Driver != Driver || !forRequest(c.Requests, request) {
			continue
		}
		source := 0
		switch c.Source {
		case resourceapi.AllocationConfigSourceClass:
		case resourceapi.AllocationConfigSourceClaim:
			source = 1
		default:
			return Parameters{}, wrong("parameters of %q, neither a class nor a claim", c.Source)
		}
		if found[source] != nil {
			return Parameters{}, wrong("the request has two sets of parameters")
		}
		found[source] = c.Opaque
	}
	class, own := Parameters{Serves: Container}, Parameters{}
	var err error
	if found[0] != nil {
		class, err = ParseParameters(found[0].Parameters.Raw)
	}
	if err != nil || found[1] == nil {
		return class, err
	}
	if own, err = ParseParameters(found[1].Parameters.Raw); err != nil {
		return own, err
	}
	return own, own.within(&class)
}

// within holds what a claim's own parameters may take of the node, which no quota counts, to what
// its class says: an administrator's word. Where the class says nothing it is what a vGPU has by
// default.
func (p *Parameters) within(class *Parameters) error {
	most, memory := cmp.Or(class.Sessions, limit.DefaultSessions), cmp.Or(class.HostMemory, limit.DefaultHostMemory)
	switch {
	case p.Sessions > most:
		return wrong("parameters: sessions: %d is more than a claim of this class may have, %d: an administrator's class can say more", p.Sessions, most)
	case p.HostMemory > memory:
		return wrong("parameters: hostMemory: %v is more than a claim of this class may have, %v: an administrator's class can say more", limit.HostMemory(p.HostMemory), limit.HostMemory(memory))
	}
	p.Sessions, p.HostMemory = cmp.Or(p.Sessions, class.Sessions), cmp.Or(p.HostMemory, class.HostMemory)
	return nil
}

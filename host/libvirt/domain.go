package libvirt

import "errors"

// Where a change applies: to the domain that runs, to its definition, or to both.
type Where uint

// Places.
const (
	Live Where = 1 << iota
	Config
)

// places in the order in which they are changed.
var places = [...]Where{Live, Config}

// Domain is one domain of a libvirt connection. It is used by one goroutine.
type Domain interface {
	Name() string
	// Places says where the domain is: Live if it runs, Config if it is defined.
	Places() (Where, error)
	// XML is its description in one place.
	XML(Where) (string, error)
	// Attach plugs a device in; places may be both. It has happened when this returns.
	Attach(device string, w Where) error
	// Detach takes a device out. A guest that runs may take its time: the device is gone when XML
	// no longer has it.
	Detach(device string, w Where) error
	// SetMetadata replaces what the metadata has under Namespace; empty removes it.
	SetMetadata(element string, w Where) error
	Close() error
}

// Errors of Open.
var (
	ErrNoLibvirt = errors.New("this build of causeway has no libvirt: build it by `make build`, or with `go build -tags libvirt_dlopen`")
	ErrNoLibrary = errors.New("libvirt's library libvirt.so.0 is not installed: `apt install libvirt0` (Debian, Ubuntu) or `dnf install libvirt-libs` (Fedora, RHEL); for a QEMU without libvirt use --qmp")
	ErrNoDomain  = errors.New("no such domain")
	ErrSilent    = errors.New("it takes connections and answers nothing: it is stopped, or hangs; `systemctl restart libvirtd` (or virtqemud), with which VMs go on")
	ErrRemote    = errors.New("the domain must run on this host, where causewayd serves its socket")
)

package api

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"causeway/host/limit"
)

// Wish is what somebody wishes of a vGPU. What is left out stays as it is; of a vGPU that is not
// there yet, the configuration says it.
type Wish struct {
	VM   string `json:"vm"`   // the domain's name
	Name string `json:"name"` // of the vGPU within the VM: gpu0
	// GPU is any, an ordinal, a list of ordinals, a UUID (of a GPU or a MIG slice), a part of a
	// model's name such as H200, or soft.
	GPU string `json:"gpu,omitempty"`
	// MIG is the profile of the slice wanted, as in 1g.18gb; empty: a whole GPU, or what GPU names.
	MIG string `json:"mig,omitempty"`
	// Remote is a GPU server of the configuration, by its name there or as HOST:PORT, or any, in
	// place of this host.
	Remote string `json:"remote,omitempty"`
	// host node of the VM's memory; among GPUs that will do, one of that node is taken
	NUMA *int `json:"numa,omitempty"`
	// Migratable: its programs' sessions may move to other workers, with a real GPU too; the
	// software GPU's always may.
	Migratable *bool `json:"migratable,omitempty"`
	// MovesAs is what the VM is called on every host where VM is another name on each: memory that
	// goes ahead of it finds its vGPU by that.
	MovesAs string `json:"moves_as,omitempty"`
	// Programs: it is for programs of this host, in a container for instance, which connect at its
	// socket, and for no VM.
	Programs *bool `json:"programs,omitempty"`
	Change
	// Owner may open the vhost-user socket, as USER or USER:GROUP; empty: the configuration's. Of a
	// vGPU for programs, whose sockets USER may open then, empty: nobody but root.
	Owner string `json:"owner,omitempty"`
}

// Change is of limits: nil is what stays. As JSON it takes numbers and the words of package limit.
type Change struct {
	// Profile sets memory, share and cap by its name; those that are named beside it go before.
	Profile  string          `json:"profile,omitempty"`
	Memory   *limit.Memory   `json:"memory,omitempty"`
	Share    *limit.Share    `json:"share,omitempty"`
	Cap      *limit.Cap      `json:"cap,omitempty"`
	Sessions *limit.Sessions `json:"sessions,omitempty"`
	// What the vGPU's programs may take of the host, and one user of the guest of its sessions.
	HostMemory   *limit.HostMemory   `json:"host_memory,omitempty"`
	UserSessions *limit.UserSessions `json:"user_sessions,omitempty"`
}

// Limits of a vGPU. They may change while programs run.
type Limits struct {
	// Bytes of device memory, contexts included; 0: the whole GPU.
	Memory uint64 `json:"memory,omitempty"`
	// Of GPU time when several want it, relative to others'; 0: limit.DefaultShare.
	Share uint32 `json:"share,omitempty"`
	Cap   uint32 `json:"cap,omitempty"` // most per cent of GPU time; 0: no cap
	// CUDA processes that may run at once; 0: the configuration's
	Sessions uint32 `json:"sessions,omitempty"`
	// HostMemory is what requests may make the host hold, in bytes; 0: limit.DefaultHostMemory.
	HostMemory uint64 `json:"host_memory,omitempty"`
	// CUDA processes of one user of the guest; 0: half of Sessions
	UserSessions uint32 `json:"user_sessions,omitempty"`
}

// Errors of Check.
var (
	ErrName  = errors.New("not a name")
	ErrLimit = limit.ErrLimit
)

// Named reports whether a change names anything.
func (c *Change) Named() bool { return *c != (Change{}) }

// Word is a limit by its name, as people write it.
type Word struct{ Name, Text string }

// Words are what a change names, as attributes of a domain's XML and flags have it.
func (c *Change) Words() []Word {
	var list []Word
	if c.Profile != "" {
		list = append(list, Word{"profile", c.Profile})
	}
	if c.Memory != nil {
		list = append(list, Word{"memory", c.Memory.String()})
	}
	if c.Share != nil {
		list = append(list, Word{"share", c.Share.String()})
	}
	if c.Cap != nil {
		list = append(list, Word{"cap", c.Cap.String()})
	}
	if c.Sessions != nil {
		list = append(list, Word{"sessions", c.Sessions.String()})
	}
	if c.HostMemory != nil {
		list = append(list, Word{"host-memory", c.HostMemory.String()})
	}
	if c.UserSessions != nil {
		list = append(list, Word{"user-sessions", c.UserSessions.String()})
	}
	return list
}

// Check says what is wrong with a change in itself.
func (c *Change) Check() error {
	var errs []error
	if c.Profile != "" && !isName(c.Profile) {
		errs = append(errs, fmt.Errorf("%w: profile %q: `causeway profiles` lists them", ErrName, c.Profile))
	}
	if c.Memory != nil {
		errs = append(errs, c.Memory.Check())
	}
	if c.Share != nil {
		errs = append(errs, c.Share.Check())
	}
	if c.Cap != nil {
		errs = append(errs, c.Cap.Check())
	}
	if c.Sessions != nil {
		errs = append(errs, c.Sessions.Check())
	}
	if c.HostMemory != nil {
		errs = append(errs, c.HostMemory.Check())
	}
	if c.UserSessions != nil {
		errs = append(errs, c.UserSessions.Check())
	}
	return errors.Join(errs...)
}

// On returns l with what a change names. Its profile has been resolved.
func (c *Change) On(l Limits) Limits {
	if c.Memory != nil {
		l.Memory = uint64(*c.Memory)
	}
	if c.Share != nil {
		l.Share = uint32(*c.Share)
	}
	if c.Cap != nil {
		l.Cap = uint32(*c.Cap)
	}
	if c.Sessions != nil {
		l.Sessions = uint32(*c.Sessions)
	}
	if c.HostMemory != nil {
		l.HostMemory = uint64(*c.HostMemory)
	}
	if c.UserSessions != nil {
		l.UserSessions = uint32(*c.UserSessions)
	}
	return l
}

// With returns a change with what a profile on a GPU sets, where it names nothing itself. Where it
// does, the profile's name would not say any more what holds, and is left out.
func (c Change) With(p limit.Profile, g limit.GPU) (Change, error) {
	alone := c.Memory == nil && c.Share == nil && c.Cap == nil
	if c.Memory == nil {
		m, err := p.Memory.On(g)
		if err != nil {
			return c, fmt.Errorf("profile %s: %w", c.Profile, err)
		}
		c.Memory = &m
	}
	c.Share, c.Cap = cmp.Or(c.Share, &p.Share), cmp.Or(c.Cap, &p.Cap)
	if !alone {
		c.Profile = ""
	}
	return c, nil
}

// Over returns a change that names what it leaves out as well, as it is in l.
func (c Change) Over(l Limits) Change {
	was := l.Change()
	c.Memory, c.Share, c.Cap, c.Sessions = cmp.Or(c.Memory, was.Memory), cmp.Or(c.Share, was.Share), cmp.Or(c.Cap, was.Cap), cmp.Or(c.Sessions, was.Sessions)
	c.HostMemory, c.UserSessions = cmp.Or(c.HostMemory, was.HostMemory), cmp.Or(c.UserSessions, was.UserSessions)
	return c
}

// Change names all limits that are not 0.
func (l Limits) Change() Change {
	var c Change
	if l.Memory != 0 {
		c.Memory = ptr(limit.Memory(l.Memory))
	}
	if l.Share != 0 {
		c.Share = ptr(limit.Share(l.Share))
	}
	if l.Cap != 0 {
		c.Cap = ptr(limit.Cap(l.Cap))
	}
	if l.Sessions != 0 {
		c.Sessions = ptr(limit.Sessions(l.Sessions))
	}
	if l.HostMemory != 0 {
		c.HostMemory = ptr(limit.HostMemory(l.HostMemory))
	}
	if l.UserSessions != 0 {
		c.UserSessions = ptr(limit.UserSessions(l.UserSessions))
	}
	return c
}

// All names every limit, those too that are none.
func (l Limits) All() Change {
	c := l.Change()
	c.Memory, c.Cap = cmp.Or(c.Memory, new(limit.Memory)), cmp.Or(c.Cap, new(limit.Cap))
	c.UserSessions = cmp.Or(c.UserSessions, new(limit.UserSessions))
	return c
}

func ptr[T any](v T) *T { return &v }

// Check says what is wrong with limits in themselves; those that are 0 are to be filled in.
func (l *Limits) Check() error {
	c := l.Change()
	return c.Check()
}

// Wish asks for a vGPU like s.
func (s Spec) Wish() Wish {
	w := Wish{VM: s.VM, Name: s.Name, GPU: s.GPU, MIG: s.MIG, Remote: s.Remote, NUMA: s.NUMA, MovesAs: s.MovesAs, Change: s.Limits.Change(), Owner: s.Owner}
	if s.Migratable {
		w.Migratable = ptr(true)
	}
	if s.Programs {
		w.Programs = ptr(true)
	}
	return w
}

// Check says what is wrong with a wish in itself.
func (w *Wish) Check() error {
	s := Spec{VM: w.VM, Name: w.Name, Remote: w.Remote, MovesAs: w.MovesAs, Programs: w.programs()}
	return errors.Join(s.Check(), w.Change.Check())
}

// isName: a name is part of paths and units. No regular expression: every process of ours would
// compile it at its start.
func isName(n string) bool {
	for i, c := range []byte(n) {
		if !isLetter(c) && (i == 0 || !strings.ContainsRune("._+:@-", rune(c))) {
			return false
		}
	}
	return n != "" && len(n) <= 63
}

func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

// Check says what is wrong with a Spec in itself.
func (s *Spec) Check() error {
	for _, n := range []string{s.VM, s.Name} {
		if !isName(n) {
			return fmt.Errorf("%w: %q: use up to 63 letters, digits and ._+:@-, not . or - first", ErrName, n)
		}
	}
	if len(s.SocketPath(RunDir)) > 107 {
		return fmt.Errorf("%w: %q is too long for a socket's path", ErrName, s.VM)
	}
	if s.Remote != "" {
		if err := CheckServer(s.Remote); err != nil {
			return fmt.Errorf("remote: %w", err)
		}
	}
	if s.Lease != "" && !isName(s.Lease) {
		return fmt.Errorf("%w: host %q", ErrName, s.Lease)
	}
	if s.MovesAs != "" && !isPath(s.MovesAs) {
		return fmt.Errorf("%w: moves_as %.100q: use up to %d letters, digits and ._+:@-/", ErrName, s.MovesAs, mostMovesAs)
	}
	return s.Limits.Check()
}

// mostMovesAs is a namespace and a pod of Kubernetes.
const mostMovesAs = 63 + 1 + 253

// isPath: what names are made of, and slashes.
func isPath(s string) bool {
	for _, c := range []byte(s) {
		if !isLetter(c) && !strings.ContainsRune("._+:@-/", rune(c)) {
			return false
		}
	}
	return len(s) <= mostMovesAs
}

// CheckServer says what is wrong with NAME or HOST:PORT of a GPU server.
func CheckServer(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = s, RemotePort
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if (!isName(host) && net.ParseIP(host) == nil) || err != nil || n == 0 {
		return fmt.Errorf("%w: %q: write a GPU server's NAME, HOST:PORT, or any", ErrName, s)
	}
	return nil
}

// IsName reports whether s can name a VM, a vGPU or a host.
func IsName(s string) bool { return isName(s) }

// Key is VM/NAME.
func (w *Wish) Key() string { return w.VM + "/" + w.Name }

// SocketPath is where the vGPU's socket is to be.
func (w *Wish) SocketPath(run string) string {
	return (&Spec{VM: w.VM, Name: w.Name, Programs: w.programs()}).SocketPath(run)
}

func (w *Wish) programs() bool { return w.Programs != nil && *w.Programs }

// Key is VM/NAME.
func (s *Spec) Key() string { return s.VM + "/" + s.Name }

// SocketPath is where a vGPU's vhost-user socket is: {run}/{vm}/{name}.sock; or where programs
// connect: {run}/{vm}/{name}.d/programs/session.
func (s *Spec) SocketPath(run string) string {
	if s.Programs {
		return filepath.Join(s.ProgramsPath(run), ProgramsSession)
	}
	return filepath.Join(run, s.VM, s.Name+".sock")
}

// Sockets in a folder for programs.
const (
	ProgramsSession = "session" // where CUDA processes connect: CAUSEWAY=unix:{folder}/session
	ProgramsNVML    = "nvml"    // where their libnvidia-ml.so.1 asks
)

// ProgramsPath is the folder that containers get of a vGPU for programs:
// {run}/{vm}/{name}.d/programs. It and its sockets are open to everybody, for whoever is who in a
// container; the folder around it is root's, so that nobody else of the host reaches it.
func (s *Spec) ProgramsPath(run string) string {
	return filepath.Join(run, s.VM, s.Name+".d", "programs")
}

// ControlPath is where its device process serves: {run}/{vm}/{name}.ctl.
func (s *Spec) ControlPath(run string) string { return filepath.Join(run, s.VM, s.Name+".ctl") }

// ReleasedPath is a file that says that a vGPU's VM ended while no causewayd ran:
// {run}/{vm}/{name}.released.
func (s *Spec) ReleasedPath(run string) string { return filepath.Join(run, s.VM, s.Name+".released") }

// ParseKey splits VM/NAME; NAME alone missing means gpu0.
func ParseKey(key string) (vm, name string) {
	vm, name, ok := strings.Cut(key, "/")
	if !ok {
		name = "gpu0"
	}
	return vm, name
}

package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Env names the variable that holds a Target, as JSON.
const Env = "CAUSEWAY_TAKEOVER"

// Prefix begins each line of results that a worker writes.
const Prefix = "takeover: "

// Target is what there is to attack, as the test set it up.
type Target struct {
	VHost     string // vhost-user socket of another VM's device
	Control   string // its control socket
	Daemon    string // causewayd's socket
	Scheduler string // the scheduler's socket
	Abstract  string // a listening abstract socket, without @
	TCP       string // address of a listener
	UDP       string
	Parent    int      // process
	Worker    int      // another VM's worker
	Memory    int      // a process that has another VM's memory mapped, at Address
	Address   uintptr  // of 8 bytes
	Files     []string // files to read: another VM's disk image, logs, secrets
	Folders   []string // to write in
	Nodes     []string // device nodes to open
	Namespace string   // a namespace file of the host's
	Marks     []Mark   // text in memory of the worker's VM and of others
}

// Attempt is one thing to try.
type Attempt struct {
	Name string
	Do   func() error
	// Through are errors that only those get whom the kernel would have let.
	Through []syscall.Errno
	// Needed: no attack; what a driver does, and must be let.
	Needed bool
	// Always: workers give it up without a sandbox too, or never had it.
	Always bool
	// Remains: it gets through with a sandbox too, as docs/SECURITY.md says.
	Remains bool
}

// Result is how an attempt ended.
type Result struct {
	Name    string
	Through bool
	Needed  bool
	Error   string
}

// Attempts are all that there is to try.
func (t *Target) Attempts() []Attempt {
	var all []Attempt
	all = append(all, t.sockets()...)
	all = append(all, t.files()...)
	all = append(all, t.processes()...)
	all = append(all, t.memory()...)
	all = append(all, kernel()...)
	return all
}

// Run tries everything.
func (t *Target) Run() []Result {
	var out []Result
	for _, a := range t.Attempts() {
		err := a.Do()
		r := Result{Name: a.Name, Through: err == nil, Needed: a.Needed}
		if err != nil {
			r.Error = err.Error()
			for _, e := range a.Through {
				r.Through = r.Through || errors.Is(err, e)
			}
		}
		out = append(out, r)
	}
	return out
}

// FromEnv runs what the environment asks for, if it asks, and writes results as lines of JSON.
func FromEnv(w io.Writer) error {
	text := os.Getenv(Env)
	if text == "" {
		return nil
	}
	t := new(Target)
	if err := json.Unmarshal([]byte(text), t); err != nil {
		return fmt.Errorf("%s: %w", Env, err)
	}
	for _, r := range t.Run() {
		b, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s%s\n", Prefix, b); err != nil {
			return err
		}
	}
	return nil
}

// errno makes an error of a system call's.
func errno(call string, e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return os.NewSyscallError(call, e)
}

// closed closes what an attempt opened.
func closed(fd int, err error) error {
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

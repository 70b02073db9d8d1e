package lease

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"

	"causeway/host/api"
	"causeway/remote"
	"causeway/remote/mtls"
	"causeway/remote/sys"
)

// File is what one side of a lease keeps: causewayd finds it again after its restart, and the
// vGPU's device process reads the keys there. Only their user can read it.
type File struct {
	ID       remote.LeaseID `json:"id"`
	Identity mtls.Pinned    `json:"identity"` // this side's
	Epoch    uint64         `json:"epoch"`
	// Host, at the server, is who has it, Heir who may take it over, and Before who had it before.
	Host   string `json:"host,omitempty"`
	Heir   string `json:"heir,omitempty"`
	Before string `json:"before,omitempty"`
	// Upstream and Addresses are for the host that has it.
	Upstream *api.Upstream `json:"upstream,omitempty"`
	// HOST:PORT of the server, for data connections
	Addresses []string `json:"addresses,omitempty"`
	// Beside is another server's lease of the same vGPU, while its programs go from one to the
	// other: which of the two they go by its device process knows.
	Beside *File `json:"beside,omitempty"`
	// Comes: it is the lease of a VM that comes from another host, and has not come yet.
	Comes Coming `json:"comes,omitempty"`
}

// Coming is what a vGPU is that awaits a VM from another host, and what becomes of it if none
// comes.
type Coming string

// Values of Coming.
const (
	ComesMade Coming = "made" // it was made for that VM, and ends
	ComesHad  Coming = "had"  // it had a lease of its own before, and takes another
	// It is of a fleet's claim, and waits: it has no lease until the VM brings its own, or the
	// fleet says that the claim is this host's.
	ComesKept Coming = "kept"
)

// mostFile bounds what is read.
const mostFile = 64 << 10

// Write writes the file as a whole or not at all.
func (f *File) Write(name string) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if err := sys.Replace(name, b, 0o600); err != nil {
		return fmt.Errorf("write down a lease: %w", err)
	}
	return nil
}

// Read reads one, which must be this user's, and nobody else's to read.
func Read(name string) (*File, error) {
	f, st, err := sys.OpenRegular(name, mostFile)
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	defer f.Close()
	if st.Mode&0o077 != 0 || int(st.Uid) != os.Geteuid() && st.Uid != 0 {
		return nil, fmt.Errorf("lease: %s: %w: it must be a file that its owner alone can read", name, fs.ErrInvalid)
	}
	b, err := io.ReadAll(io.LimitReader(f, mostFile))
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	l := &File{}
	if err := json.Unmarshal(b, l); err != nil {
		return nil, fmt.Errorf("lease: %s: %w", name, err)
	}
	for _, h := range []string{l.Host, l.Heir, l.Before} {
		if h != "" && !api.IsName(h) {
			return nil, fmt.Errorf("lease: %s: %w: host %q", name, fs.ErrInvalid, h)
		}
	}
	return l, nil
}

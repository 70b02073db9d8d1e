package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"causeway/host/api"
	"causeway/host/fleet/claim"
	"causeway/remote/sys"
)

// Record is what this host has of a claim: written before causewayd is asked for anything of it,
// removed after all of it is gone.
type Record struct {
	Namespace string    `json:"namespace"`
	Claim     string    `json:"claim"`
	UID       types.UID `json:"uid"`
	Pod       string    `json:"pod"`
	PodUID    types.UID `json:"pod_uid"`
	Domain    string    `json:"domain"`
	VGPUs     []string  `json:"vgpus"` // by their names within the claim
}

// Dir is the folder of records, one file for each claim.
type Dir string

const recordSuffix = ".json"

// mostRecord bounds a file.
const mostRecord = 1 << 16

// ErrRecord says that a file is no record.
var ErrRecord = errors.New("it is no record of a claim")

func (d Dir) path(uid types.UID) string {
	return filepath.Join(string(d), api.ClaimPrefix+string(uid)+recordSuffix)
}

// Put writes one, as a whole or not at all, and onto the disk: after a crash it says which domain
// has what.
func (d Dir) Put(r *Record) error {
	if err := r.check(); err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(string(d), 0o700)
	}
	if err != nil {
		return err
	}
	return sys.Replace(d.path(r.UID), append(b, '\n'), 0o600)
}

// Remove forgets one; that there is none is no error.
func (d Dir) Remove(uid types.UID) error {
	if err := os.Remove(d.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// All are those that there are; a file that is none is an error beside the others.
func (d Dir) All() (list []Record, err error) {
	files, err := filepath.Glob(d.path("*"))
	errs := []error{err}
	for _, f := range files {
		r, err := readRecord(f)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f, err))
			continue
		}
		list = append(list, r)
	}
	return list, errors.Join(errs...)
}

func readRecord(file string) (r Record, err error) {
	b, err := sys.ReadRegular(file, mostRecord)
	if errors.Is(err, sys.ErrNotRegular) {
		return r, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	if err != nil {
		return r, err
	}
	if r, err = parseRecord(b); err != nil {
		return r, err
	}
	if filepath.Base(file) != api.ClaimPrefix+string(r.UID)+recordSuffix {
		return r, fmt.Errorf("%w of that name", ErrRecord)
	}
	return r, nil
}

func parseRecord(b []byte) (r Record, err error) {
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return r, r.check()
}

// check: what of it becomes names of files and arguments of programs.
func (r *Record) check() error {
	if err := claim.CheckUID(r.UID); err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	if r.Namespace == "" || r.Claim == "" || r.PodUID == "" || checkDomain(r.Domain) != nil {
		return ErrRecord
	}
	for _, name := range r.VGPUs {
		if !api.IsName(name) {
			return fmt.Errorf("%w: vGPU %q", ErrRecord, name)
		}
	}
	return nil
}

// checkDomain: libvirt has names that a command line would take for an option, and ones that no
// person would see in a line of a log.
func checkDomain(name string) error {
	bad := name == "" || len(name) > 255 || strings.HasPrefix(name, "-")
	for _, c := range name {
		bad = bad || c < ' ' || c == 0x7f || c == '/'
	}
	if bad {
		return fmt.Errorf("%w: %q: use a domain's name as `virsh list --all` has it, without slashes and not a dash first", ErrDomain, name)
	}
	return nil
}

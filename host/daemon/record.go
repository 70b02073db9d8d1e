package daemon

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"causeway/host/api"
	"causeway/host/limit"
	"causeway/remote/sys"
)

// recordFormat is raised when a causewayd could misread what a newer one wrote.
const recordFormat = 1

// record is what causewayd writes about a vGPU.
type record struct {
	Format int `json:"format"`
	// With the configuration's defaults, and limits that were changed since.
	Spec    api.Spec  `json:"spec"`
	GPU     string    `json:"gpu"`   // UUIDs, separated by commas
	PID     int       `json:"pid"`   // 0: it was about to be started
	Start   uint64    `json:"start"` // of the process, in clock ticks since the host booted
	Started time.Time `json:"started"`
	Version string    `json:"version"`        // of the device process
	Journal bool      `json:"journal"`        // its log goes to the journal
	Swap    bool      `json:"swap,omitempty"` // its sessions wait for room
	// Starting: it has not answered yet, and nobody was told of it.
	Starting bool `json:"starting,omitempty"`
	// Ahead: it was made for a VM that another host was about to send, and is nobody's before that
	// is here: it ends if the VM does not come.
	Ahead bool   `json:"ahead,omitempty"`
	Lost  bool   `json:"lost,omitempty"`
	Why   string `json:"why,omitempty"`
}

// newRecord is the record of a vGPU that is about to be started.
func newRecord(s api.Spec) record {
	return record{Format: recordFormat, Spec: s, Started: time.Now(), Starting: true}
}

const recordSuffix = ".json"

func recordPath(run string, s *api.Spec) string {
	return filepath.Join(run, s.VM, s.Name+recordSuffix)
}

// writeJSON writes a file as a whole or not at all.
func writeJSON(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return sys.Replace(name, append(b, '\n'), 0o644)
}

// maxRecord bounds what is read of a file that others might have written.
const maxRecord = 1 << 20

func readJSON(name string, v any) error {
	b, err := sys.ReadRegular(name, maxRecord)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// readRecord reads a record, and checks that it is about the vGPU whose place it has.
func readRecord(run, vm, name string) (record, error) {
	var r record
	file := filepath.Join(run, vm, name+recordSuffix)
	if err := readJSON(file, &r); err != nil {
		return r, err
	}
	switch {
	case r.Format > recordFormat:
		return r, fmt.Errorf("%s was written by a newer causewayd (format %d, this one knows %d)", file, r.Format, recordFormat)
	case r.Spec.VM != vm || r.Spec.Name != name || r.PID < 0:
		return r, fmt.Errorf("%s is about %s", file, r.Spec.Key())
	}
	// Of one that was written when it had another name.
	r.Spec.Share = cmp.Or(r.Spec.Share, limit.DefaultShare)
	return r, r.Spec.Check()
}

// removeAll removes files; what is not there is no error.
func removeAll(names ...string) error {
	var errs []error
	for _, n := range names {
		if err := os.Remove(n); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

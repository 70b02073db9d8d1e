// Package cdi writes what a container runtime adds to containers of a claim: Container Device
// Interface specifications, a file for each claim.
package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/specs-go"

	"causeway/remote/sys"
)

// Kind of our devices.
const Kind = "causeway.dev/vgpu"

// version of the specification that the files are written by: annotations need it, and every
// runtime of Kubernetes 1.36 knows it.
const version = "0.6.0"

const filePrefix, fileSuffix = "causeway.dev-claim-", ".json"

// Annotations of a file: whose it is.
const (
	namespaceKey = "causeway.dev/claim-namespace"
	nameKey      = "causeway.dev/claim-name"
	sharesKey    = "causeway.dev/claim-shares"
)

// Claim names whose devices a file has.
type Claim struct {
	Namespace, Name string
	UID             types.UID
	// Shares are of which allocation the devices are, in a text; "": it is not known.
	Shares string
}

// Dir is a folder that runtimes read.
type Dir string

// DeviceID is how a runtime is asked for a claim's device.
func DeviceID(uid types.UID, name string) string { return Kind + "=" + deviceName(uid, name) }

// deviceName is one that no other claim will have: runtimes keep what they have read.
func deviceName(uid types.UID, name string) string { return string(uid) + "-" + name }

func (d Dir) path(uid types.UID) string {
	return filepath.Join(string(d), filePrefix+string(uid)+fileSuffix)
}

// Write replaces a claim's file, as a whole or not at all. edits are by the devices' names.
func (d Dir) Write(c Claim, edits map[string]specs.ContainerEdits) error {
	s := specs.Spec{Version: version, Kind: Kind, Annotations: map[string]string{namespaceKey: c.Namespace, nameKey: c.Name}}
	if c.Shares != "" {
		s.Annotations[sharesKey] = c.Shares
	}
	for name, e := range edits {
		s.Devices = append(s.Devices, specs.Device{Name: deviceName(c.UID, name), ContainerEdits: e})
	}
	b, err := json.MarshalIndent(&s, "", "  ")
	if err == nil {
		err = os.MkdirAll(string(d), 0o755)
	}
	if err == nil {
		// Which has a name that no runtime reads while it is written.
		err = sys.Replace(d.path(c.UID), append(b, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the container specification: %w", err)
	}
	return nil
}

// Remove removes a claim's file; that there is none is no error.
func (d Dir) Remove(uid types.UID) error {
	if err := os.Remove(d.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the container specification: %w", err)
	}
	return nil
}

// mostFile bounds a file that others might have written.
const mostFile = 1 << 20

// Claims lists whose files are there. A file that cannot be read, or is not ours, is an error
// beside the others.
func (d Dir) Claims() ([]Claim, error) {
	files, err := filepath.Glob(filepath.Join(string(d), filePrefix+"*"+fileSuffix))
	if err != nil {
		return nil, err
	}
	var list []Claim
	var errs []error
	for _, file := range files {
		c, err := read(file)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
			continue
		}
		list = append(list, c)
	}
	return list, errors.Join(errs...)
}

func read(file string) (Claim, error) {
	b, err := sys.ReadRegular(file, mostFile)
	if err != nil {
		return Claim{}, err
	}
	var s specs.Spec
	if err := json.Unmarshal(b, &s); err != nil {
		return Claim{}, err
	}
	uid := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), filePrefix), fileSuffix)
	c := Claim{s.Annotations[namespaceKey], s.Annotations[nameKey], types.UID(uid), s.Annotations[sharesKey]}
	if s.Kind != Kind || c.Namespace == "" || c.Name == "" || c.UID == "" {
		return c, errors.New("it does not say whose it is")
	}
	return c, nil
}

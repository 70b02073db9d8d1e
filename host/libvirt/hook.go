package libvirt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"causeway/host/api"
)

// HookCall is how libvirt calls a hook: DOMAIN OPERATION SUB-OPERATION EXTRA, with the domain's XML
// on stdin.
type HookCall struct {
	Domain, Op, SubOp string
	XML               io.Reader
}

// Hook readies a domain's vGPUs before QEMU starts, and releases them after it has ended. A domain
// without vGPUs costs a look at its XML. An error keeps a domain from starting; libvirt shows its
// text. Whatever else is worth knowing goes to say.
func Hook(ctx context.Context, c HookCall, run string, d Daemon, say io.Writer) error {
	begin := c.Op == "prepare" && c.SubOp == "begin"
	if !begin && !(c.Op == "release" && c.SubOp == "end") {
		return nil
	}
	doc, err := io.ReadAll(io.LimitReader(c.XML, MaxXML+1))
	if err != nil {
		return fmt.Errorf("domain XML from libvirt: %w", err)
	}
	if !bytes.Contains(doc, []byte(Namespace)) && !bytes.Contains(doc, []byte(run)) {
		return nil
	}
	x, err := Parse(doc)
	if err != nil {
		return err
	}
	x.Name = c.Domain
	if begin {
		return ready(ctx, x, run, d, say)
	}
	for _, s := range x.specs(run) {
		failed := ReleaseUnused(ctx, d, s.VM, s.Name)
		if errors.Is(failed, api.ErrNotRunning) { // it is told when it comes
			failed = errors.Join(failed, leaveWord((&api.Spec{VM: s.VM, Name: s.Name}).ReleasedPath(run)))
		}
		err = errors.Join(err, failed)
	}
	return err
}

// leaveWord makes an empty file, if its folder is there: else nothing is left of the vGPU.
func leaveWord(path string) error {
	err := os.WriteFile(path, nil, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ready ensures every vGPU of a domain, or none.
func ready(ctx context.Context, x *DomainXML, run string, d Daemon, say io.Writer) error {
	list, node := x.specs(run), x.Node("/sys")
	for i, s := range list {
		s.NUMA = node
		_, wished := x.VGPU(s.Name)
		if _, ok := x.Filesystem(s.SocketPath(run)); !ok {
			device, err := FilesystemXML(s.SocketPath(run), s.Name)
			if err != nil {
				return err
			}
			return fmt.Errorf("domain %s wishes a vGPU %s and has no device for it: add to its <devices>:\n%s", x.Name, s.Name, indent(device))
		}
		v, err := d.Ensure(ctx, s)
		if err != nil {
			for _, done := range list[:i] {
				err = errors.Join(err, ReleaseUnused(ctx, d, done.VM, done.Name))
			}
			return fmt.Errorf("vGPU %s of domain %s: %w", s.Name, x.Name, err)
		}
		switch {
		case v.Spec.Memory != 0:
		case !wished:
			fmt.Fprintf(say, "vGPU %s of domain %s: the metadata has no wishes for it, so it is any GPU, without a limit of memory\n", s.Name, x.Name)
		default:
			fmt.Fprintf(say, "vGPU %s of domain %s: no limit of memory: it may take the whole GPU's; memory='...' or profile='...' sets one\n", s.Name, x.Name)
		}
	}
	return nil
}

// specs are the vGPUs of the metadata, and those of which only the device is there.
func (d *DomainXML) specs(run string) []api.Wish {
	var list []api.Wish
	for _, s := range d.VGPUs {
		s.VM = d.Name
		list = append(list, s)
	}
	for _, f := range d.Filesystems {
		s := api.Wish{VM: d.Name, Name: strings.TrimSuffix(filepath.Base(f.Socket), ".sock")}
		if _, ok := d.VGPU(s.Name); ok || s.SocketPath(run) != filepath.Clean(f.Socket) || s.Check() != nil {
			continue // somebody else's, served by hand
		}
		list = append(list, s)
	}
	return list
}

// names are those of specs.
func (d *DomainXML) names(run string) []string {
	var list []string
	for _, s := range d.specs(run) {
		list = append(list, s.Name)
	}
	return list
}

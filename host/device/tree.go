package device

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"causeway/remote"
	"causeway/virtio/fs"
)

//go:embed setup.sh
var setupScript []byte

// maxRead is the largest READ that a guest sends: 256 pages.
const maxRead = 1 << 20

// Tree is what the guest sees besides the session file.
type Tree struct {
	Lib     string // folder with libcuda.so.1 and libnvidia-ml.so.1
	Version string
	GPU     string // what users are told
	Memory  uint64 // limit in bytes, 0: none
}

// build lays out the mount:
//
//	lib/libcuda.so.1 libcuda.so libnvidia-ml.so.1 libnvidia-ml.so
//	bin/setup        makes lib/ permanent in the guest
//	info             key=value lines
//	session          control file
//	nvml             control file: what libnvidia-ml.so.1 asks, if nvml is given
func (t Tree) build(session, nvml fs.ControlFile) (*fs.Dir, error) {
	root := fs.NewDir()
	lib := root.Dir("lib")
	for _, name := range []string{"libcuda.so", "libnvidia-ml.so"} {
		b, err := os.ReadFile(filepath.Join(t.Lib, name+".1"))
		if errors.Is(err, os.ErrNotExist) && name != "libcuda.so" {
			continue // NVML is optional: programs ask for it and go on without
		}
		if err != nil {
			return nil, fmt.Errorf("guest library: %w: build it by `make build`, or name its folder with --lib", err)
		}
		lib.File(name+".1", fs.Bytes(b), 0o555)
		lib.Symlink(name, name+".1")
	}
	root.Dir("bin").File("setup", fs.Bytes(setupScript), 0o555)
	root.File("info", fs.Bytes([]byte(t.info())), 0o444)
	root.Control("session", session)
	if nvml != nil {
		root.Control("nvml", nvml)
	}
	return root, nil
}

func (t Tree) info() string {
	var b strings.Builder
	fmt.Fprintf(&b, "protocol=%d\n", remote.ProtocolVersion)
	fmt.Fprintf(&b, "max_read=%d\n", maxRead)
	fmt.Fprintf(&b, "version=%s\n", t.Version)
	fmt.Fprintf(&b, "gpu=%s\n", strings.ReplaceAll(t.GPU, "\n", " "))
	fmt.Fprintf(&b, "memory=%d\n", t.Memory)
	return b.String()
}

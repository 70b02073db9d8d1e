package device

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"causeway/remote"
	"causeway/virtio/fs"
)

// What runs in the guest.
var (
	//go:embed setup.sh
	setupScript []byte
	//go:embed check.sh
	checkScript []byte
	//go:embed cdihook.sh
	cdiHook []byte
	//go:embed cloud-init.yaml
	cloudInit []byte
)

// Tree is what the guest sees besides the session file.
type Tree struct {
	Lib     string // folder with libcuda.so.1, libnvidia-ml.so.1, causeway-check and bin/nvidia-smi
	Version string
	GPU     string // what users are told, at first
	Direct  bool   // guest processes may be RDMA ends themselves
}

// build lays out the mount:
//
//	lib/libcuda.so.1 libcuda.so libnvidia-ml.so.1 libnvidia-ml.so
//	bin/setup        makes lib/ permanent in the guest
//	bin/check        says whether programs can use the GPU; bin/causeway-check is one
//	bin/nvidia-smi   our own: it asks lib/libnvidia-ml.so.1
//	bin/cdi-hook     of the container specification that setup writes
//	share/cloud-init.yaml
//	info             key=value lines, the limit of memory as it is
//	session          control file
//	nvml             control file: what libnvidia-ml.so.1 asks, if nvml is given
//
// now is what info says.
func (t Tree) build(session, nvml fs.ControlFile, now func() shown) (*fs.Dir, error) {
	root := fs.NewDir()
	lib, bin := root.Dir("lib"), root.Dir("bin")
	for _, name := range []string{"libcuda.so", "libnvidia-ml.so"} {
		c, err := t.file(name + ".1")
		if errors.Is(err, os.ErrNotExist) && name != "libcuda.so" {
			continue // NVML is optional: programs ask for it and go on without
		}
		if err != nil {
			return nil, fmt.Errorf("guest library: %w: build it by `make build`, or name its folder with --lib", err)
		}
		lib.File(name+".1", c, 0o555)
		lib.Symlink(name, name+".1")
	}
	if c, err := t.file("causeway-check"); err == nil { // bin/check does without, and says so
		bin.File("causeway-check", c, 0o555)
	}
	if c, err := t.file("bin/nvidia-smi"); err == nil {
		bin.File("nvidia-smi", c, 0o555)
	}
	bin.File("setup", fs.Bytes(setupScript), 0o555)
	bin.File("check", fs.Bytes(checkScript), 0o555)
	bin.File("cdi-hook", fs.Bytes(cdiHook), 0o555)
	root.Dir("share").File("cloud-init.yaml", fs.Bytes(cloudInit), 0o444)
	root.File("info", fs.Live(func() []byte { return t.info(now()) }), 0o444)
	root.Control("session", session)
	if nvml != nil {
		root.Control("nvml", nvml)
	}
	return root, nil
}

// file serves a file of Lib from the page cache, which all devices of the host share. It stays
// open: an upgrade puts another file in its place, and this device goes on with the one that its
// guest knows.
func (t Tree) file(name string) (fs.Content, error) {
	f, err := os.Open(filepath.Join(t.Lib, name))
	if err != nil {
		return nil, err
	}
	return fs.OSFile(f)
}

// shown is what the guest is told of its virtual GPU.
type shown struct {
	gpu    string // that users are told of
	memory uint64 // its limit in bytes; 0: none
	read   int    // bytes of the largest READ that its kernel sends
}

func (t Tree) info(now shown) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "protocol=%d\n", remote.ProtocolVersion)
	fmt.Fprintf(&b, "max_read=%d\n", now.read)
	fmt.Fprintf(&b, "max_leases=%d\n", maxPieces) // it is this process that counts, and refuses
	fmt.Fprintf(&b, "version=%s\n", t.Version)
	fmt.Fprintf(&b, "gpu=%s\n", strings.ReplaceAll(now.gpu, "\n", " "))
	fmt.Fprintf(&b, "memory=%d\n", now.memory)
	if t.Direct {
		fmt.Fprintf(&b, "direct=1\n")
	}
	return b.Bytes()
}

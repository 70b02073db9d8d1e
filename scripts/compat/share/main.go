// Command causeway-share shows folders of this machine to a VM, read-only, as a virtio-fs device of
// its own: the stock guest kernel needs no driver for it, and QEMU no more than for the vGPU.
//
//	causeway-share --socket /run/share.sock --empty proc --empty dev --empty tmp /usr/bin /usr/lib /opt/torch
//	-chardev socket,id=host,path=/run/share.sock -device vhost-user-fs-pci,chardev=host,tag=host
//
// The tree is what the folders hold when the program starts; files are opened for each read, so it
// holds no descriptors. A VM may move to another such program with the same folders.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"causeway/vhostuser"
	vfs "causeway/virtio/fs"
)

// words collects a flag that may repeat.
type words []string

func (w *words) String() string     { return strings.Join(*w, " ") }
func (w *words) Set(s string) error { *w = append(*w, s); return nil }

func main() {
	var empty words
	socket := flag.String("socket", "", "path of the vhost-user socket to make")
	flag.Var(&empty, "empty", "an empty folder to show, for mounts inside the guest; may repeat")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *socket, empty, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "share:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, socket string, empty, paths []string) error {
	if socket == "" || len(paths) == 0 {
		return errors.New("--socket and at least one folder are needed: see --help")
	}
	root, files, err := build(empty, paths)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	mem := vhostuser.NewMemory()
	dev, err := vfs.New(mem, root, vfs.Options{RequestQueues: 1, Logger: log})
	if err != nil {
		return err
	}
	dev.SumTree()
	ln, err := vhostuser.Listen(socket)
	if err != nil {
		return err
	}
	log.Info("sharing", "files", files, "socket", socket)
	return vhostuser.NewServer(mem, dev, vhostuser.Options{Logger: log}).Serve(ctx, ln)
}

// build makes the tree of the named paths, each at the place it has on this machine.
func build(empty, paths []string) (root *vfs.Dir, files int, err error) {
	t := tree{dirs: map[string]*vfs.Dir{"/": vfs.NewDir()}, seen: map[string]bool{}}
	for _, p := range paths {
		if p, err = filepath.Abs(p); err != nil {
			return nil, 0, err
		}
		if err := filepath.WalkDir(p, t.visit); err != nil {
			return nil, 0, err
		}
	}
	for _, p := range empty {
		t.dir(filepath.Join("/", p))
	}
	return t.dirs["/"], t.files, nil
}

// tree is under construction; dirs are the folders made so far by their absolute names.
type tree struct {
	dirs  map[string]*vfs.Dir
	seen  map[string]bool
	files int
}

func (t *tree) dir(p string) *vfs.Dir {
	if d := t.dirs[p]; d != nil {
		return d
	}
	d := t.dir(filepath.Dir(p)).Dir(filepath.Base(p))
	t.dirs[p] = d
	return d
}

// visit adds one entry. What is neither file, folder nor link is left out, and so is what cannot be
// read.
func (t *tree) visit(p string, e fs.DirEntry, err error) error {
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	}
	if t.seen[p] {
		return nil
	}
	t.seen[p] = true
	switch {
	case e.IsDir():
		t.dir(p)
	case e.Type() == fs.ModeSymlink:
		target, err := os.Readlink(p)
		if err != nil {
			return err
		}
		t.dir(filepath.Dir(p)).Symlink(filepath.Base(p), target)
	case e.Type().IsRegular():
		info, err := e.Info()
		if err != nil {
			return err
		}
		t.dir(filepath.Dir(p)).File(filepath.Base(p), content{p, info.Size(), info.ModTime()}, info.Mode().Perm()|0o444)
		t.files++
	}
	return nil
}

// content is a file that is opened for each read: a tree of a hundred thousand files must not hold
// as many descriptors.
type content struct {
	path    string
	size    int64
	changed time.Time
}

func (c content) Size() int64 { return c.size }

// Sum implements vfs.Summed: a VM may go to another share of the same tree, and reading all of it
// would take minutes.
func (c content) Sum() []byte {
	return fmt.Appendf(nil, "%s %d %d", c.path, c.size, c.changed.UnixNano())
}

func (c content) ReadAt(p []byte, off int64) (int, error) {
	f, err := os.Open(c.path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.ReadAt(p, off)
}

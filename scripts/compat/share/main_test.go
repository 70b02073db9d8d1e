package main

import (
	"os"
	"path/filepath"
	"testing"

	"causeway/vhostuser"
	vfs "causeway/virtio/fs"
)

// TestBuild serves a folder with every kind of entry, and the same folder named twice.
func TestBuild(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a/b/f"), []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("b/f", filepath.Join(dir, "a/l")); err != nil {
		t.Fatal(err)
	}
	root, files, err := build([]string{"proc", "/run/causeway"}, []string{dir, filepath.Join(dir, "a")})
	if err != nil || files != 1 {
		t.Fatalf("%d files, %v", files, err)
	}
	if _, err := vfs.New(vhostuser.NewMemory(), root, vfs.Options{RequestQueues: 1}); err != nil {
		t.Fatal(err)
	}
	c := content{path: filepath.Join(dir, "a/b/f"), size: 5}
	p := make([]byte, 3)
	if n, err := c.ReadAt(p, 1); n != 3 || err != nil || string(p) != "ell" {
		t.Errorf("%d %q %v", n, p, err)
	}
	if _, _, err := build(nil, []string{filepath.Join(dir, "nowhere")}); err == nil {
		t.Error("a folder that is not there is no error")
	}
}

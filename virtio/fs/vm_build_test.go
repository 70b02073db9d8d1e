package fs_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// guestPrograms compiles the test guest's programs and returns the folder with them.
func guestPrograms(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		missing(t, "gcc is missing: install it to build the test guest")
	}
	dir := t.TempDir()
	src := func(names ...string) (out []string) {
		for _, n := range names {
			out = append(out, filepath.Join("testdata", "guest", n))
		}
		return out
	}
	flags := []string{"-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"}
	for _, p := range []struct {
		name string
		args []string
	}{
		{"init", append([]string{"-static"}, src("init.c", "files.c", "loans.c", "loop.c")...)},
		{"static", append([]string{"-static"}, src("static.c")...)},
		{"dynamic", append(src("dynamic.c"), "-Wl,--dynamic-linker=/mnt/lib/ld-linux-x86-64.so.2", "-Wl,-rpath,/mnt/lib", "-ldl")},
		{"libanswer.so", append([]string{"-shared", "-fPIC"}, src("answer.c")...)},
	} {
		cmd := exec.Command(cc, append(append(flags[:len(flags):len(flags)], p.args...), "-o", filepath.Join(dir, p.name))...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("compile %s: %v\n%s", p.name, err, out)
		}
	}
	return dir
}

// hostLibrary finds a library of this machine's libc, for the guest's dynamic program.
func hostLibrary(t *testing.T, name string) []byte {
	t.Helper()
	out, err := exec.Command("gcc", "-print-file-name="+name).Output()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

// initramfs packs init and the kernel's modules, and returns the archive's path.
func initramfs(t *testing.T, init, modules string) string {
	t.Helper()
	var raw bytes.Buffer
	cpio := cpioWriter{&raw, 0}
	b, err := os.ReadFile(init)
	if err != nil {
		t.Fatal(err)
	}
	cpio.add("init", 0o100755, b)
	if _, err := os.Stat(modules); err == nil {
		cpio.add("modules", 0o040755, nil)
		err := filepath.WalkDir(modules, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			cpio.add("modules/"+e.Name(), 0o100644, b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	cpio.add("TRAILER!!!", 0, nil)
	path := filepath.Join(t.TempDir(), "initramfs.gz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, _ := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if _, err := z.Write(raw.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// cpioWriter writes the "newc" format (Documentation/driver-api/early-userspace/buffer-format.rst).
type cpioWriter struct {
	w   *bytes.Buffer
	ino int
}

func (c *cpioWriter) add(name string, mode uint32, data []byte) {
	c.ino++
	fmt.Fprintf(c.w, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		c.ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	c.pad()
	c.w.Write(data)
	c.pad()
}

func (c *cpioWriter) pad() {
	for c.w.Len()%4 != 0 {
		c.w.WriteByte(0)
	}
}

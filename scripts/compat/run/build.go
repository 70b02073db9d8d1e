package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// toolchain is what the machine has to compile the small C programs with.
type toolchain struct {
	nvcc string
	inc  []string // folders of headers
	lib  []string // folders of libraries
}

// findToolchain looks for nvcc, then for the headers and libraries of the toolkit and of Python's
// nvidia packages.
func findToolchain() (toolchain, error) {
	var t toolchain
	for _, c := range []string{"nvcc", "/usr/local/cuda/bin/nvcc"} {
		if p, err := exec.LookPath(c); err == nil {
			t.nvcc = p
			break
		}
	}
	if t.nvcc == "" {
		return t, fmt.Errorf("no nvcc in PATH or /usr/local/cuda/bin")
	}
	roots := []string{filepath.Dir(filepath.Dir(t.nvcc)), "/usr/local/cuda"}
	out, err := exec.Command("python3", "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").Output()
	if err == nil {
		more, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "nvidia", "*"))
		roots = append(roots, more...)
	}
	for _, r := range roots {
		for _, d := range []string{"include"} {
			if st, err := os.Stat(filepath.Join(r, d)); err == nil && st.IsDir() {
				t.inc = append(t.inc, filepath.Join(r, d))
			}
		}
		for _, d := range []string{"lib64", "lib", "targets/x86_64-linux/lib"} {
			if st, err := os.Stat(filepath.Join(r, d)); err == nil && st.IsDir() {
				t.lib = append(t.lib, filepath.Join(r, d))
			}
		}
	}
	return t, nil
}

// library finds the file to link for a name such as cublas; pip's packages have only
// libcublas.so.13.
func (t toolchain) library(name string) string {
	for _, d := range t.lib {
		for _, pattern := range []string{"lib" + name + ".so", "lib" + name + ".so.*"} {
			if found, _ := filepath.Glob(filepath.Join(d, pattern)); len(found) > 0 {
				return found[0]
			}
		}
	}
	return ""
}

// build compiles a row's source into dir and points the row at the binary.
func (t toolchain) build(ctx context.Context, r *row, dir string) error {
	bin := filepath.Join(dir, r.name)
	args := []string{"-O2", "-std=c++17", "-arch=sm_90", "-Wno-deprecated-declarations", "-diag-suppress", "177", "-o", bin, r.source}
	args = append(args, r.flags...)
	for _, d := range t.inc[1:] { // nvcc knows its own
		args = append(args, "-I", d)
	}
	for _, name := range r.libs {
		if name == "cuda" {
			args = append(args, "-lcuda")
			continue
		}
		so := t.library(name)
		if so == "" {
			return fmt.Errorf("no lib%s.so on this machine", name)
		}
		args = append(args, "-Xlinker", so, "-Xlinker", "-rpath", "-Xlinker", filepath.Dir(so))
	}
	for _, d := range t.lib {
		args = append(args, "-L", d, "-L", filepath.Join(d, "stubs"), "-Xlinker", "-rpath-link", "-Xlinker", d)
	}
	out, err := exec.CommandContext(ctx, t.nvcc, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("nvcc: %w: %s", err, firstError(string(out)))
	}
	r.program = bin
	return nil
}

func firstError(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, "error") || strings.Contains(line, "undefined") {
			return strings.TrimSpace(line)
		}
	}
	return lastLine(out)
}

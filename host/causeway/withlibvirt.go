package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"causeway/host/libvirt"
)

// libvirtProgram is this program built with libvirt: beside it, or installed. It is a program of
// its own because the binding loads libvirt's library, and the thirty that it needs, before main:
// 15 ms and several MiB for every worker and device process.
const libvirtProgram = "causeway-libvirt"

// becomeLibvirt replaces this process by libvirtProgram with the same arguments. It returns only if
// there is none.
func becomeLibvirt() error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("%w: %w", libvirt.ErrNoLibvirt, err)
	}
	dir := filepath.Dir(exe)
	for _, path := range []string{filepath.Join(dir, libvirtProgram), filepath.Join(dir, "../libexec/causeway", libvirtProgram)} {
		err := unix.Exec(path, append([]string{"causeway"}, os.Args[1:]...), os.Environ())
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("start %s: %w", path, err)
		}
	}
	return libvirt.ErrNoLibvirt
}

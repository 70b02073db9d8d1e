package vf

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Errors. Each is wrapped with what it is about and what helps.
var (
	ErrNotFound    = errors.New("no such function")
	ErrNoSRIOV     = errors.New("this device has no virtual functions")
	ErrTooMany     = errors.New("more virtual functions than the device can have")
	ErrInUse       = errors.New("the virtual function is in use")
	ErrNoneFree    = errors.New("no virtual function is free")
	ErrNotAssigned = errors.New("the virtual function is nobody's")
	ErrUnsupported = errors.New("the driver cannot do this")
	ErrNoIOMMU     = errors.New("the host has no IOMMU that works, without which no device can be passed through")
	ErrIgnored     = errors.New("the driver did not take it")
	ErrRights      = errors.New("this takes root's rights on the host")
	ErrRecord      = errors.New("record of virtual functions")
	ErrValue       = errors.New("not valid")
)

// explain says what an error of the kernel means for what was tried.
func explain(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%s: %w: run it as root, and not in a container whose /sys is read-only: %w", what, ErrRights, err)
	case unsupported(err) && !errors.Is(err, ErrUnsupported):
		return fmt.Errorf("%s: %w: %w", what, ErrUnsupported, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// unsupported says whether a driver has no such thing.
func unsupported(err error) bool {
	return errors.Is(err, ErrUnsupported) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS)
}

// explainCount is explain for a new number of functions.
func explainCount(pf *PF, n int, err error) error {
	what := fmt.Sprintf("make %d virtual functions of %s", n, pf.Name)
	switch {
	case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%s: %w: the firmware of the host left no PCI addresses or bus numbers for them: enable SR-IOV (and \"above 4G decoding\") in the BIOS, or boot with pci=realloc,assign-busses", what, err)
	case errors.Is(err, syscall.EBUSY):
		return fmt.Errorf("%s: %w: something else changes them at this moment, or a VM holds one: `causeway vf list` shows who", what, err)
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENODEV):
		return fmt.Errorf("%s: %w: its driver %q does not make any: bind the vendor's driver (for ConnectX: modprobe mlx5_core)", what, err, pf.Driver)
	}
	return explain(what, err)
}

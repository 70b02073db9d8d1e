package inventory

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrNoNVML says that this machine has no driver whose management library answers.
var ErrNoNVML = errors.New("no libnvidia-ml.so.1 that works")

// Library is a management library (NVML), as far as this package uses it.
type Library interface {
	// Call calls an entry point. Arguments are uint64 for numbers and handles, and []byte for what
	// is passed by address, which the entry point may fill.
	Call(entry string, args ...any) Return
}

// Return is an nvmlReturn_t.
type Return int

// Returns that this package tells apart.
const (
	Success          Return = 0
	InvalidArgument  Return = 2
	NotSupported     Return = 3
	NotFound         Return = 6
	FunctionNotFound Return = 13
)

func (r Return) Error() string { return fmt.Sprintf("NVML error %d", int(r)) }

// gpu is a device of a library.
type gpu struct {
	lib    Library
	handle uint64
}

// number reads one number: entry(device, args..., &number).
func (g gpu) number(entry string, args ...uint64) uint32 {
	var out [4]byte
	if g.call(entry, args, out[:]) != Success {
		return Unknown32
	}
	return binary.LittleEndian.Uint32(out[:])
}

// long is number for 64 bits.
func (g gpu) long(entry string, args ...uint64) uint64 {
	var out [8]byte
	if g.call(entry, args, out[:]) != Success {
		return Unknown64
	}
	return binary.LittleEndian.Uint64(out[:])
}

// two reads two numbers: entry(device, &a, &b).
func (g gpu) two(entry string) (a, b uint32) {
	var x, y [4]byte
	if g.call(entry, nil, x[:], y[:]) != Success {
		return Unknown32, Unknown32
	}
	return binary.LittleEndian.Uint32(x[:]), binary.LittleEndian.Uint32(y[:])
}

// text reads a text: entry(device, buffer, length).
func (g gpu) text(entry string) string {
	b := make([]byte, 96)
	if g.lib.Call(entry, g.handle, b, uint64(len(b))) != Success {
		return ""
	}
	return text(b)
}

// fill reads a struct: entry(device, args..., &struct).
func (g gpu) fill(entry string, out []byte, args ...uint64) bool {
	return g.call(entry, args, out) == Success
}

func (g gpu) call(entry string, args []uint64, outs ...[]byte) Return {
	all := []any{g.handle}
	for _, a := range args {
		all = append(all, a)
	}
	for _, o := range outs {
		all = append(all, o)
	}
	return g.lib.Call(entry, all...)
}

// systemText reads a text of the library: entry(buffer, length).
func systemText(l Library, entry string) string {
	b := make([]byte, 80)
	if l.Call(entry, b, uint64(len(b))) != Success {
		return ""
	}
	return text(b)
}

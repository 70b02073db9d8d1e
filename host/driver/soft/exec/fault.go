package exec

import (
	"fmt"

	"causeway/host/driver/soft/ptx"
)

// FaultKind is the closed list of ways a kernel can fail.
type FaultKind uint8

// Fault kinds, with the CUDA error a driver reports for each.
const (
	IllegalAddress     FaultKind = iota + 1 // CUDA_ERROR_ILLEGAL_ADDRESS
	MisalignedAddress                       // CUDA_ERROR_MISALIGNED_ADDRESS
	IllegalInstruction                      // CUDA_ERROR_ILLEGAL_INSTRUCTION
	Assert                                  // CUDA_ERROR_ASSERT
	Trap                                    // CUDA_ERROR_LAUNCH_FAILED
	StackOverflow                           // CUDA_ERROR_HARDWARE_STACK_ERROR
	InvalidPC                               // CUDA_ERROR_INVALID_PC
	Deadlock                                // CUDA_ERROR_LAUNCH_TIMEOUT: no thread can go on
	Cancelled                               // the launch's context ended
)

var faultNames = [...]string{
	IllegalAddress: "illegal address", MisalignedAddress: "misaligned address", IllegalInstruction: "illegal instruction",
	Assert: "assertion failed", Trap: "trap", StackOverflow: "stack overflow", InvalidPC: "invalid program counter",
	Deadlock: "deadlock", Cancelled: "cancelled",
}

func (k FaultKind) String() string {
	if int(k) < len(faultNames) && faultNames[k] != "" {
		return faultNames[k]
	}
	return fmt.Sprintf("fault %d", k)
}

// Fault is a kernel's failure. It stops the whole launch.
type Fault struct {
	Kind     FaultKind
	Function string // the PTX function, empty if unknown
	Line     int    // of the PTX source
	Block    [3]uint32
	Thread   [3]uint32
	Space    ptx.Space // for address faults
	Address  uint64
	Size     uint64
	Write    bool
	Msg      string // assertion text or further detail
	Err      error  // Cancelled: the context's error
}

func (f *Fault) Error() string {
	s := "exec: " + f.Kind.String()
	switch f.Kind {
	case IllegalAddress, MisalignedAddress:
		verb := "read"
		if f.Write {
			verb = "write"
		}
		s += fmt.Sprintf(": %s of %d bytes at %s address %#x", verb, f.Size, f.Space, f.Address)
	}
	if f.Msg != "" {
		s += ": " + f.Msg
	}
	if f.Function != "" {
		s += fmt.Sprintf(" (%s, line %d, block %v, thread %v)", f.Function, f.Line, f.Block, f.Thread)
	}
	if f.Err != nil {
		s += ": " + f.Err.Error()
	}
	return s
}

// Unwrap returns the context's error of a cancelled launch.
func (f *Fault) Unwrap() error { return f.Err }

// UnsupportedError names an instruction or feature that exec lacks.
type UnsupportedError struct {
	Function string
	Line     int
	What     string // the instruction with its modifiers, or the feature
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("exec: %s, line %d: unsupported: %s", e.Function, e.Line, e.What)
}

// ConfigError is a launch configuration that no device would accept.
type ConfigError struct{ Msg string }

func (e *ConfigError) Error() string { return "exec: launch: " + e.Msg }

// Package kvm finds out whether KVM runs guests on this host. That /dev/kvm opens says little: in a
// VM whose host has no nested virtualization it may be there and execute a guest's instructions one
// by one in software, or take only guests made for it, and QEMU then stops or hangs at the first
// ones.
//
// Probe makes a guest of one CPU and 64 KiB that counts down in 64-bit mode, as the kernel of a
// guest runs, and writes to a port. It leaves nothing behind. A run that does not come back keeps
// its thread until the process ends.
package kvm

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors of Probe, besides those of the system calls.
var (
	ErrStopped = errors.New("a guest stops at its first instructions")
	ErrSlow    = errors.New("a guest's instructions are executed in software, not by the CPU")
	ErrHost    = errors.New("QEMU's -cpu host (host-passthrough) does not start")
)

// Bounds. The countdown is 200,000 instructions: less than a tenth of a millisecond of a CPU, 300
// ms where each is executed in software.
const (
	countdown = 100_000
	mostCPU   = 50 * time.Millisecond // CPU time, so that other work of the host does not count
	mostWait  = 5 * time.Second
)

// Probe runs the guest. The error wraps one of the above, or what the kernel said.
func Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, mostWait)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- probe(ctx) }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %v after it was started it had not come to its end", ErrSlow, mostWait)
	}
}

// judge makes a verdict of how the guest came to its end.
func judge(reason uint32, port uint16, value byte, took time.Duration) error {
	switch {
	case reason != exitIO:
		return fmt.Errorf("%w: %s", ErrStopped, reasonText(reason))
	case port != donePort || value != doneValue:
		return fmt.Errorf("%w: it wrote %#x to port %#x, want %#x to %#x", ErrStopped, value, port, doneValue, donePort)
	case took > mostCPU:
		return fmt.Errorf("%w: %d of them took %v of a CPU, not a tenth of a millisecond", ErrSlow, 2*countdown, took.Round(time.Millisecond))
	}
	return nil
}

// Reasons for which a guest stops (kvm.h, KVM_EXIT_*).
const (
	exitIO            = 2
	exitHLT           = 5
	exitShutdown      = 8
	exitFailEntry     = 9
	exitInternalError = 17
)

func reasonText(reason uint32) string {
	switch reason {
	case exitHLT:
		return "it halted early"
	case exitShutdown:
		return "triple fault (KVM_EXIT_SHUTDOWN)"
	case exitFailEntry:
		return "the CPU did not enter it (KVM_EXIT_FAIL_ENTRY)"
	case exitInternalError:
		return "KVM cannot go on (KVM_EXIT_INTERNAL_ERROR)"
	}
	return fmt.Sprintf("exit reason %d", reason)
}

// What the guest writes when it is done.
const (
	donePort  = 0x10
	doneValue = 0x42
)

// Where things are in the guest's memory.
const (
	memorySize = 0x10000
	tablesAt   = 0x1000 // one table of each of three levels, of 4 KiB
	codeAt     = 0x4000
	wordAt     = 0x5000
	stackAt    = 0x8000
)

// code is the guest's program, at codeAt.
var code = []byte{
	0x0f, 0x20, 0xd8, // mov rax, cr3
	0x0f, 0x22, 0xd8, // mov cr3, rax
	// Mov rcx, countdown.
	0x48, 0xc7, 0xc1, countdown & 0xff, countdown >> 8 & 0xff, countdown >> 16 & 0xff, 0,
	0x48, 0xff, 0xc9, // dec rcx
	0x75, 0xfb, // jnz back
	0x48, 0xff, 0x04, 0x25, wordAt & 0xff, wordAt >> 8, 0, 0, // inc qword [wordAt]
	0x66, 0xba, donePort, 0, // mov dx, donePort
	0xb0, doneValue, // mov al, doneValue
	0xee, // out dx, al
	0xf4, // hlt
}

package kvm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of linux/kvm.h for x86-64.
const (
	getAPIVersion       = 0xae00
	createVM            = 0xae01
	getVCPUMapSize      = 0xae04
	getSupportedCPUID   = 0xc008ae05
	createVCPU          = 0xae41
	setUserMemoryRegion = 0x4020ae46
	setTSSAddr          = 0xae47
	run                 = 0xae80
	setRegs             = 0x4090ae82
	getSregs            = 0x8138ae83
	setSregs            = 0x4138ae84
	getMSRs             = 0xc008ae88
	setMSRs             = 0x4008ae89
	setCPUID2           = 0x4008ae90

	apiVersion = 12
	tssAt      = 0xfffbd000 // Intel CPUs want three pages for themselves; QEMU's place for them
)

// memoryRegion is struct kvm_userspace_memory_region.
type memoryRegion struct {
	slot, flags          uint32
	guest, size, address uint64
}

//lint:file-ignore U1000 These are the kernel's structs: what nobody sets has its place.

// regs is struct kvm_regs.
type regs struct {
	rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp uint64
	r8, r9, r10, r11, r12, r13, r14, r15   uint64
	rip, rflags                            uint64
}

// segment is struct kvm_segment.
type segment struct {
	base                                              uint64
	limit                                             uint32
	selector                                          uint16
	kind, present, dpl, db, s, l, g, avl, unusable, _ uint8
}

// sregs is struct kvm_sregs.
type sregs struct {
	cs, ds, es, fs, gs, ss, tr, ldt segment
	gdt, idt                        [2]uint64
	cr0, cr2, cr3, cr4, cr8         uint64
	efer, apicBase                  uint64
	interrupts                      [4]uint64
}

// cpuid is struct kvm_cpuid2 with room.
type cpuid struct {
	n, _    uint32
	entries [256]struct{ function, index, flags, eax, ebx, ecx, edx, _, _, _ uint32 }
}

// msr is struct kvm_msrs with one entry.
type msr struct {
	n, _     uint32
	index, _ uint32
	data     uint64
}

// machine is the guest.
type machine struct {
	kvm, vm, cpu int
	memory, run  []byte
	offered      cpuid // by KVM
}

// probe makes the guest and runs it to its end.
func probe(ctx context.Context) error {
	runtime.LockOSThread() // its CPU time is taken
	defer runtime.UnlockOSThread()
	m := machine{kvm: -1, vm: -1, cpu: -1}
	defer m.close()
	if err := m.make(); err != nil {
		return err
	}
	before, err := cpuTime()
	if err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	after, err := cpuTime()
	if err != nil {
		return err
	}
	reason, port, value := m.exit()
	if err := judge(reason, port, value, after-before); err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(m.memory[wordAt:]); n != 1 {
		return fmt.Errorf("%w: its memory holds %d, want 1", ErrStopped, n)
	}
	return m.takesFeatures()
}

func ioctl[T any](what string, fd int, request uintptr, arg *T) error {
	_, err := counted(what, fd, request, arg)
	return err
}

// counted is a request whose result is a number. Only in the call itself is a pointer a number: a
// stack that grows moves what is on it.
func counted[T any](what string, fd int, request uintptr, arg *T) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(arg)))
	if errno != 0 {
		return -1, os.NewSyscallError(what, errno)
	}
	return int(n), nil
}

func value(what string, fd int, request, arg uintptr) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, arg)
	if errno != 0 {
		return -1, os.NewSyscallError(what, errno)
	}
	return int(n), nil
}

func (m *machine) make() (err error) {
	if m.kvm, err = unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("open /dev/kvm", err)
	}
	if v, err := value("KVM_GET_API_VERSION", m.kvm, getAPIVersion, 0); err != nil || v != apiVersion {
		return errors.Join(err, fmt.Errorf("KVM's API has version %d, want %d", v, apiVersion))
	}
	if m.vm, err = value("KVM_CREATE_VM", m.kvm, createVM, 0); err != nil {
		return err
	}
	_, _ = value("KVM_SET_TSS_ADDR", m.vm, setTSSAddr, tssAt) // not for CPUs that want none
	if m.memory, err = unix.Mmap(-1, 0, memorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	m.load()
	region := memoryRegion{size: memorySize, address: uint64(uintptr(unsafe.Pointer(&m.memory[0])))}
	if err := ioctl("KVM_SET_USER_MEMORY_REGION", m.vm, setUserMemoryRegion, &region); err != nil {
		return err
	}
	if m.cpu, err = value("KVM_CREATE_VCPU", m.vm, createVCPU, 0); err != nil {
		return err
	}
	size, err := value("KVM_GET_VCPU_MMAP_SIZE", m.kvm, getVCPUMapSize, 0)
	if err != nil {
		return err
	}
	if m.run, err = unix.Mmap(m.cpu, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return os.NewSyscallError("mmap of the virtual CPU", err)
	}
	if err := m.features(); err != nil {
		return err
	}
	return m.start()
}

// load writes the guest's memory: two megabytes from address 0 are mapped to themselves.
func (m *machine) load() {
	const presentWritable, large = 0b11, 1 << 7
	put := binary.LittleEndian.PutUint64
	put(m.memory[tablesAt:], tablesAt+0x1000|presentWritable)
	put(m.memory[tablesAt+0x1000:], tablesAt+0x2000|presentWritable)
	put(m.memory[tablesAt+0x2000:], large|presentWritable)
	copy(m.memory[codeAt:], code)
}

// features gives the guest the CPU that KVM offers, as -cpu host does.
func (m *machine) features() error {
	m.offered.n = uint32(len(m.offered.entries))
	if err := ioctl("KVM_GET_SUPPORTED_CPUID", m.kvm, getSupportedCPUID, &m.offered); err != nil {
		return err
	}
	return ioctl("KVM_SET_CPUID2", m.cpu, setCPUID2, &m.offered)
}

// archCapabilities is the MSR IA32_ARCH_CAPABILITIES, which says of which faults a CPU is free;
// CPUID's leaf 7 offers it in a bit of EDX.
const archCapabilities, archCapabilitiesBit = 0x10a, 29

// takesFeatures tries what QEMU insists on with -cpu host: the MSR that KVM offers has to be taken
// with the value that KVM gives.
func (m *machine) takesFeatures() error {
	for _, e := range m.offered.entries[:min(int(m.offered.n), len(m.offered.entries))] {
		if e.function != 7 || e.index != 0 || e.edx>>archCapabilitiesBit&1 == 0 {
			continue
		}
		r := msr{n: 1, index: archCapabilities}
		if n, err := counted("KVM_GET_MSRS", m.kvm, getMSRs, &r); err != nil || n != 1 {
			return nil // QEMU sets none then
		}
		if n, err := counted("KVM_SET_MSRS", m.cpu, setMSRs, &r); err != nil || n != 1 {
			return fmt.Errorf("%w: KVM offers the MSR %#x and does not take it", ErrHost, archCapabilities)
		}
	}
	return nil
}

// start puts the CPU into 64-bit mode at the program's first instruction.
func (m *machine) start() error {
	const protectedPaged, pae, longMode = 0x80050033, 1 << 5, 0x500
	var s sregs
	if err := ioctl("KVM_GET_SREGS", m.cpu, getSregs, &s); err != nil {
		return err
	}
	s.cr0, s.cr3, s.cr4, s.efer = protectedPaged, tablesAt, pae, longMode
	s.cs = segment{limit: 1<<32 - 1, selector: 8, kind: 11, present: 1, s: 1, l: 1, g: 1}
	data := segment{limit: 1<<32 - 1, selector: 16, kind: 3, present: 1, db: 1, s: 1, g: 1}
	s.ds, s.es, s.fs, s.gs, s.ss = data, data, data, data, data
	if err := ioctl("KVM_SET_SREGS", m.cpu, setSregs, &s); err != nil {
		return err
	}
	return ioctl("KVM_SET_REGS", m.cpu, setRegs, &regs{rip: codeAt, rsp: stackAt, rflags: 2})
}

// enter runs the guest until it asks for something. Signals, which Go's scheduler sends, interrupt
// it.
func (m *machine) enter(ctx context.Context) error {
	for {
		_, err := value("KVM_RUN", m.cpu, run, 0)
		if err == nil || !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// exit reads why the guest stopped, and what it wrote (struct kvm_run: exit_reason at 8; io at 32:
// direction, size, port, count, and where the data is).
func (m *machine) exit() (reason uint32, port uint16, value byte) {
	order := binary.LittleEndian
	reason = order.Uint32(m.run[8:])
	if reason != exitIO {
		return reason, 0, 0
	}
	port = order.Uint16(m.run[34:])
	if at := order.Uint64(m.run[40:]); at < uint64(len(m.run)) {
		value = m.run[at]
	}
	return reason, port, value
}

func (m *machine) close() {
	for _, b := range [][]byte{m.run, m.memory} {
		if b != nil {
			_ = unix.Munmap(b)
		}
	}
	for _, fd := range []int{m.cpu, m.vm, m.kvm} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// cpuTime is what the calling thread has taken of a CPU, a guest's included.
func cpuTime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return time.Duration(t.Nano()), nil
}

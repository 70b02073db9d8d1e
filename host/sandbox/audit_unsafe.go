package sandbox

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// receive waits for a question.
func receive(listener int) (q question, err error) {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&q)))
	if e != 0 {
		return q, e
	}
	return q, nil
}

func respond(listener int, a answer) error {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
	if e != 0 {
		return e
	}
	return nil
}

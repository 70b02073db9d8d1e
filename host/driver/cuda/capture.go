package cuda

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// capture takes what the driver prints to one of this process's standard descriptors for kernels:
// printf to 1, assert to 2. The driver writes through libc; a memory file behind the descriptor
// holds any amount without ever blocking it.
type capture struct {
	fd    int
	saved int // what was behind fd
	file  *os.File
	read  int64
}

func captureOutput(fd int) (*capture, error) {
	mem, err := unix.MemfdCreate("causeway-console", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("capture device output: %w", err)
	}
	saved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		saved = -1 // the descriptor was closed
	}
	if err := unix.Dup3(mem, fd, 0); err != nil {
		unix.Close(mem)
		return nil, fmt.Errorf("capture device output: %w", err)
	}
	return &capture{fd: fd, saved: saved, file: os.NewFile(uintptr(mem), "console")}, nil
}

// take returns what was printed since the last call.
func (c *capture) take() []byte {
	if c == nil {
		return nil
	}
	flushStdout()
	st, err := c.file.Stat()
	if err != nil || st.Size() <= c.read {
		return nil
	}
	b := make([]byte, st.Size()-c.read)
	n, _ := c.file.ReadAt(b, c.read)
	c.read += int64(n)
	// Keep the file small: what was read is punched out.
	_ = unix.Fallocate(int(c.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, c.read)
	return b[:n]
}

// close puts back what was there. What was printed and not taken goes there too.
func (c *capture) close() error {
	if c == nil {
		return nil
	}
	rest := c.take()
	if c.saved >= 0 {
		_ = unix.Dup3(c.saved, c.fd, 0)
		unix.Close(c.saved)
		if c.fd == 2 {
			_, _ = unix.Write(c.fd, rest)
		}
	}
	return c.file.Close()
}

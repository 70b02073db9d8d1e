package cuda

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// capture takes what the driver prints to this process's standard output for kernels. The driver writes through libc;
// a memory file behind descriptor 1 holds any amount without ever blocking it.
type capture struct {
	saved int // the real standard output
	file  *os.File
	read  int64
}

func captureStdout() (*capture, error) {
	fd, err := unix.MemfdCreate("causeway-console", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("capture device output: %w", err)
	}
	saved, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		saved = -1 // standard output was closed
	}
	if err := unix.Dup3(fd, 1, 0); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("capture device output: %w", err)
	}
	return &capture{saved: saved, file: os.NewFile(uintptr(fd), "console")}, nil
}

// take returns what was printed since the last call.
func (c *capture) take() []byte {
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

func (c *capture) close() error {
	if c.saved >= 0 {
		_ = unix.Dup3(c.saved, 1, 0)
		unix.Close(c.saved)
	}
	return c.file.Close()
}

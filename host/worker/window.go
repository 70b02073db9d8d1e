package worker

import (
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/worker/precopy"
	"causeway/remote/shm"
	"causeway/remote/sys"
)

// windowSize is how much memory two workers of a host share while a session moves between them, in
// bytes: enough that both GPUs' copies go on beside each other.
const windowSize = 8 * precopy.Slot

// window is one that a session moves through.
type window struct {
	mem   []byte
	unmap func()
	back  *net.UnixConn
	pins  func() // ends what the driver knows of it; nil: nothing
}

// close ends it, which is pinned no more.
func (v *window) close() {
	if v == nil {
		return
	}
	_ = v.back.Close()
	v.unmap()
}

// pin lets a session copy straight to and from it. One that cannot copies by way of memory of its
// own.
func (v *window) pin(s driver.Session, log *slog.Logger) {
	p, ok := s.(driver.Pinner)
	if !ok {
		return
	}
	var err error
	if v.pins, err = p.Pin(v.mem); err != nil {
		log.Debug("copies of the session's memory go by way of the worker's", "error", err)
	}
}

func (v *window) unpin() {
	if v != nil && v.pins != nil {
		v.pins()
		v.pins = nil
	}
}

// Read and Write implement io.ReadWriter, with a limit for a peer that hangs.
func (v *window) Read(b []byte) (int, error) {
	_ = v.back.SetReadDeadline(time.Now().Add(handoverLimit))
	return v.back.Read(b)
}

func (v *window) Write(b []byte) (int, error) {
	_ = v.back.SetWriteDeadline(time.Now().Add(handoverLimit))
	return v.back.Write(b)
}

// openWindow makes a window, and shows it to the successor.
func (h *handover) openWindow() error {
	fd, err := sys.NewMemory("causeway-window", windowSize, 0)
	if err != nil {
		return fmt.Errorf("window: %w", err)
	}
	defer unix.Close(fd)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("window: %w", err)
	}
	defer unix.Close(pair[1])
	w, err := h.mapWindow(fd, pair[0])
	if err != nil {
		return err
	}
	h.send.Through(w)
	return h.sendFiles([]int{fd, pair[1]})
}

// takeWindow is openWindow's other side.
func (h *handover) takeWindow() error {
	files, err := h.receiveFiles()
	if err != nil {
		return fmt.Errorf("window: %w", err)
	}
	if len(files) != 2 {
		sys.CloseAll(files)
		return fmt.Errorf("window: %d descriptors", len(files))
	}
	defer unix.Close(files[0])
	w, err := h.mapWindow(files[0], files[1])
	if err != nil {
		return err
	}
	h.recv.Through(w)
	return nil
}

// mapWindow takes back over.
func (h *handover) mapWindow(fd, back int) (*precopy.Window, error) {
	conn, err := sys.UnixConn(back, "slots of a window")
	if err != nil {
		return nil, err
	}
	size, err := sys.FixedSize(fd)
	if err == nil && size != windowSize {
		err = fmt.Errorf("%w: %d bytes", precopy.ErrStream, size)
	}
	var mem []byte
	var unmap func()
	if err == nil {
		// One worker has it before its session is made, the other behind it.
		mem, unmap, err = shm.Aside(fd, windowSize)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("window: %w", err)
	}
	h.win = &window{mem: mem, unmap: unmap, back: conn}
	return precopy.NewWindow(mem, h.win)
}

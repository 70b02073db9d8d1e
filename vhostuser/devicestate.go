package vhostuser

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Direction and phase of SET_DEVICE_STATE_FD.
const (
	stateSave         = 0
	stateLoad         = 1
	statePhaseStopped = 0
)

// stateNoFD in the reply: the back end uses the front end's pipe.
const stateNoFD = 1 << 8

// transfer is a device-state transfer. file belongs to its goroutine, which ends it by closing it.
type transfer struct {
	file *os.File
	done chan struct{}
	err  error // valid after done
}

// abort makes reads and writes fail and waits.
func (t *transfer) abort() {
	_ = t.file.Close()
	<-t.done
}

// setDeviceStateFD replies first: QEMU moves no byte before the reply.
func (c *conn) setDeviceStateFD(m *message) ([]byte, error) {
	fd := m.takeFD()
	t, err := c.beginTransfer(m.u32(0), m.u32(4), fd)
	if err != nil {
		_ = unix.Close(fd)
		c.log.Error("device state refused", "error", err)
		return u64Payload(stateNoFD | 1), nil
	}
	c.transfer = t
	return u64Payload(stateNoFD), nil
}

func (c *conn) beginTransfer(direction, phase uint32, fd int) (*transfer, error) {
	h, ok := c.dev.(StateHandler)
	if !ok {
		return nil, fmt.Errorf("the device cannot be migrated: %w", errors.ErrUnsupported)
	}
	if direction > stateLoad || phase != statePhaseStopped {
		return nil, fmt.Errorf("direction %d, phase %d: %w", direction, phase, ErrProtocol)
	}
	for i := range c.rings {
		if c.rings[i].running {
			return nil, fmt.Errorf("ring %d is running: %w", i, ErrProtocol)
		}
	}
	if c.transfer != nil {
		select {
		case <-c.transfer.done:
		default:
			return nil, fmt.Errorf("another transfer is going on: %w", ErrProtocol)
		}
	}
	// This end of the pipe is ours alone, unlike eventfds: non-blocking lets Close interrupt the
	// transfer.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("state pipe: %w", err)
	}
	t := &transfer{file: os.NewFile(uintptr(fd), "device-state"), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		began := time.Now()
		if direction == stateSave {
			t.err = h.Save(t.file)
		} else {
			t.err = h.Load(t.file)
		}
		// Said here: a front end that sees the pipe break may go without asking.
		if t.err != nil && !errors.Is(t.err, os.ErrClosed) {
			c.log.Error("device state transfer failed", "error", t.err)
		}
		if t.err == nil {
			c.log.Info("device state transferred", "loaded", direction == stateLoad, "took", time.Since(began).Round(time.Millisecond))
		}
		_ = t.file.Close() // the end of the file is the end of the state
	}()
	return t, nil
}

// checkDeviceState waits for the transfer and reports it.
func (c *conn) checkDeviceState(*message) ([]byte, error) {
	if c.transfer == nil {
		c.log.Error("device state checked without a transfer")
		return u64Payload(1), nil
	}
	<-c.transfer.done
	err := c.transfer.err
	c.transfer = nil
	if err != nil {
		return u64Payload(1), nil
	}
	return u64Payload(0), nil
}

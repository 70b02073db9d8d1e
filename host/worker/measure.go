package worker

import (
	"bytes"

	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/worker/link"
)

// guest is who the session's process says it is.
type guest struct {
	pid     uint32
	program string
}

func guestOf(a *wire.SessionInitArgs) guest {
	return guest{pid: a.Pid, program: string(bytes.TrimRight(a.Exe, "\x00"))}
}

// measure answers link.Measure, beside the link's goroutine: the consumer may be busy. One answer serves all questions that come
// before it.
func (w *Worker) measure(l *link.Conn) {
	if w.measuring.Swap(true) {
		return
	}
	defer w.measuring.Store(false)
	var u link.Use
	err := w.onLoop(func() error {
		u.PID, u.Program = w.guest.pid, w.guest.program
		if m, ok := w.session.(driver.Meter); ok {
			for _, d := range m.MemoryUse() {
				u.Devices = append(u.Devices, link.DeviceUse(d))
			}
		}
		return nil
	})
	if err != nil {
		return // the session is over
	}
	payload, err := u.Encode()
	if err != nil {
		w.log.Error("use cannot be told", "error", err)
		return
	}
	_ = l.Send(link.Message{Type: link.Measured, Payload: payload}) // a parent that is gone wants no answer
}

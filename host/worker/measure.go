package worker

import (
	"bytes"
	"errors"

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

// measure answers link.Measure, beside the link's goroutine: the consumer may be busy. One answer
// serves all questions that came before it was begun.
func (w *Worker) measure(l *link.WorkerEnd) {
	if w.questions.Add(1) > 1 {
		return // who answers sees it
	}
	for n := int32(1); ; n = w.questions.Load() {
		w.answer(l)
		if w.questions.CompareAndSwap(n, 0) {
			return
		}
	}
}

func (w *Worker) answer(l *link.WorkerEnd) {
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
	if err := l.Send(link.Measured{Use: u}); errors.Is(err, link.ErrMessage) {
		// Otherwise the parent is gone, and wants no answer.
		w.log.Error("use cannot be told", "error", err)
	}
}

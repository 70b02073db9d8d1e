package worker

import (
	"errors"

	"golang.org/x/sys/unix"
)

// steps are what one end of a move does, in order, as far as a test has it go.
type steps []func(h *handover) error

// play takes them, ends the stream then, and says what failed.
func (s steps) play(h *handover) chan error {
	done := make(chan error, 1)
	go func() {
		defer h.close()
		var err error
		for _, step := range s {
			if err = step(h); err != nil {
				break
			}
		}
		done <- err
	}()
	return done
}

// successor is a worker to which sessions move, by its steps.
type successor struct {
	w  *Worker
	no error // with which it refuses
}

func (s successor) files(h *handover) error {
	list, err := h.receiveFiles()
	for _, f := range list {
		err = errors.Join(err, unix.Close(f))
	}
	return err
}

func (s successor) snap(h *handover) error    { _, err := readSnapshot(h.in); return err }
func (s successor) takes(h *handover) error   { return h.sendLent(nil) }
func (s successor) memory(h *handover) error  { return h.receiveMemory(s.w) }
func (s successor) agrees(h *handover) error  { return h.sendVerdict(nil) }
func (s successor) refuses(h *handover) error { return h.sendVerdict(s.no) }
func (s successor) hears(h *handover) error   { return h.receiveVerdict() }

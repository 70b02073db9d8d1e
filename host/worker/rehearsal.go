package worker

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"causeway/cuda/wire"
	"causeway/host/worker/link"
)

// Before a VM stops, all that its sessions are made of is made once at the destination, by workers
// that end then: what would come out another, a variable of a module at another address above all,
// is known while the programs run. So a session is rehearsed in the order in which it will be
// rebuilt, from the same base, with a driver that was started in the same way; and what it does
// then is what it would have done without.

// rehearse writes what the session is made of to m's stream, and answers, beside the link's
// goroutine.
func (s *starter) rehearse(w *Worker, m link.Copy) error {
	h, err := newHandover(m.Stream.FD(), 0)
	if err != nil {
		return s.link.Send(link.Copied{Number: m.Number, Status: link.StatusOf(unix.EIO, err)})
	}
	go func() {
		defer h.close()
		var snap *snapshot
		err := w.onLoop(func() error { snap = w.outline(s.virtiofs.bare()); return nil })
		if err == nil {
			snap.Warm = s.warm
			err = h.send.Still(h.out)
		}
		if err == nil {
			snap.write(h.out)
			err = h.out.Flush()
		}
		// A parent that is gone asks nothing.
		_ = s.link.Send(link.Copied{Number: m.Number, Status: link.StatusOf(unix.EIO, err)})
	}()
	return nil
}

// outline is what the session is made of, for whoever reads it while that goes on. It runs on the
// consumer.
func (w *Worker) outline(of *virtiofsState) *snapshot {
	s := &snapshot{Virtiofs: of, Images: map[uint32][]byte{}}
	for _, e := range w.record.entries() {
		s.Requests = append(s.Requests, request{bytes.Clone(e.rec), slices.Clone(e.placed)})
	}
	for id, b := range w.record.blobs.byID {
		s.Images[id] = b.bytes
	}
	return s
}

// differs says what of a session cannot be here what it is elsewhere.
type differs struct{ why error }

func (d *differs) Error() string { return d.why.Error() }

// perform makes all that a session is made of once. What a driver gives a reason for is what would
// keep the session away; other failures may be of this rehearsal, which has no memory, and of what
// needs what has failed.
func (w *Worker) perform(s *snapshot) error {
	images := &blobStore{byID: map[uint32]*storedBlob{}}
	for id, b := range s.Images {
		images.byID[id] = &storedBlob{bytes: b}
	}
	var first error
	for i := range s.Requests {
		err := w.replay(&s.Requests[i], images)
		var why *wire.Reason
		if errors.As(err, &why) {
			return &differs{err}
		}
		if first == nil {
			first = err
		}
	}
	if first != nil {
		return fmt.Errorf("the rehearsal is not complete: %w", first)
	}
	return nil
}

// performed tells the parent how a rehearsal ended.
func (s *starter) performed(err error) error {
	s.log.Info("session rehearsed", "error", err)
	var d *differs
	if errors.As(err, &d) {
		return s.link.Send(link.Adopted{Status: link.StatusOf(unix.EADDRNOTAVAIL, d)})
	}
	return s.link.Send(adopted(err))
}

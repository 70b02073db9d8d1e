package worker

import (
	"errors"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
)

// What a worker does for its parent, which speaks by the link.

// refuse tells the parent that no session came to be. Where the carrier shook hands itself, it has
// told the guest.
func (s *starter) refuse(err error) {
	_ = s.link.Send(link.Started{Status: link.StatusOf(unix.EPROTO, err)})
}

// routineLink follows the parent process until the session or the link ends.
func (s *starter) routineLink(w *Worker, end func()) {
	s.tied = s.virtiofs != nil || s.cfg.Tied
	for {
		r, err := s.next()
		if errors.Is(err, link.ErrMessage) {
			s.log.Error("session ends", "error", err)
			end()
			return
		}
		if err != nil {
			// Without a device process there is no guest memory. A worker on a connection goes on
			// with its guest, unless it is tied.
			if s.tied {
				s.log.Info("session ends with its parent", "link", err)
				end()
			}
			return
		}
		if err := s.follow(w, r, end); err != nil {
			switch {
			case errors.Is(err, errMoved):
			case errors.Is(err, errEnded):
				s.log.Warn("session ends by its guest", "reason", err)
			default:
				s.log.Error("session ends", "error", err)
			}
			end()
			return
		}
	}
}

// follow does what a message of the parent says while the session runs.
func (s *starter) follow(w *Worker, r link.Received[link.ToWorker], end func()) error {
	switch m := r.Message().(type) {
	case link.Quit:
		end()
		return nil
	case link.Leave:
		s.tied = s.virtiofs != nil
		return nil
	case link.Park:
		err := w.park(s.virtiofs, m)
		if err != nil && !errors.Is(err, errBusy) {
			return err
		}
		return s.link.Send(link.Parked{Number: m.Number, Status: link.StatusOf(unix.EBUSY, err)})
	case link.Probe:
		go s.probe(w, m)
		return nil
	case link.Export:
		return s.link.Send(w.exported(s.export(w, m)))
	case link.Copy:
		return s.ahead.copy(s, w, m)
	case link.CutCopy:
		s.ahead.cut(m.Over)
		return nil
	case link.Throttle:
		w.throttle.share.Store(m.Share)
		return nil
	case link.Answer:
		w.sharing.answered(m)
		return nil
	case link.Room:
		if w.room.asks != nil {
			w.room.answered(m)
		}
		return nil
	case link.Resume:
		return w.resume(s.virtiofs)
	case link.SharePages:
		return s.pages.take(m.Pages)
	case link.Measure:
		go w.measure(s.link)
		return nil
	case link.SetLimit:
		w.limitIs(m.Bytes)
		return nil
	case link.Rebuild:
		return s.rebuild(w, m)
	case link.Reconnected:
		return s.another(r, m)
	}
	if s.virtiofs != nil {
		return s.virtiofs.handle(r)
	}
	return r.Refuse()
}

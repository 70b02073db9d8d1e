package spawn

import (
	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
)

// offer keeps what a worker shares.
func (p *Process) offer(m link.Offer) {
	a := link.Answer{Request: m.Request}
	fd := m.File.FD()
	if p.shared.Offer(p, m.Token, m.Blob, fd) != nil {
		a.Errno = unix.EINVAL
	}
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	_ = p.link.Send(a) // a worker that is gone needs none
}

// redeem gives a worker what another has shared.
func (p *Process) redeem(m link.Redeem) {
	a := link.Answer{Request: m.Request}
	blob, fd, err := p.shared.Redeem(m.Token)
	if err != nil {
		a.Errno = unix.EINVAL
	}
	a.Blob, a.File = blob, link.FileOf(fd)
	_ = p.link.Send(a)
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

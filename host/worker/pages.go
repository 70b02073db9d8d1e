package worker

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote/sys"
)

// pages are what the worker shares with the device process, the other sessions of its virtual GPU
// and the scheduler. A page stays mapped until the process ends, also when another took its place:
// whoever looked it up may still use it.
type pages struct {
	mu      sync.Mutex
	mem     [256][]byte
	watches [256][]func(mem []byte)
	bell    int // eventfd of the scheduler, open until the process ends; 0: none
}

// page is the newest page of a kind; nil: none.
func (p *pages) page(k link.PageKind) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mem[k]
}

// watch calls f with the page of a kind, if it is there, and with each that takes its place, on the
// link's goroutine.
func (p *pages) watch(k link.PageKind, f func(mem []byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches[k] = append(p.watches[k], f)
	if p.mem[k] != nil {
		f(p.mem[k])
	}
}

// take maps pages, whose files it takes over.
func (p *pages) take(list []link.Page) error {
	defer func() {
		for _, s := range list {
			_ = unix.Close(s.File)
		}
	}()
	for _, s := range list {
		if s.Kind == link.PageBell {
			if err := p.takeBell(s.File); err != nil {
				return err
			}
			continue
		}
		mem, err := sys.MapPage(s.File, s.Kind != link.PageGrant)
		if err != nil {
			return fmt.Errorf("page of kind %d: %w", s.Kind, err)
		}
		p.mu.Lock()
		p.mem[s.Kind] = mem
		for _, f := range p.watches[s.Kind] {
			f(mem)
		}
		p.mu.Unlock()
	}
	return nil
}

func (p *pages) takeBell(fd int) error {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("scheduler's bell: %w", err)
	}
	p.mu.Lock()
	p.bell = fd
	p.mu.Unlock()
	return nil
}

// awaitLent has the process sealed, and then the guest's pages.
func (s *starter) awaitLent() error {
	if err := s.sealed(); err != nil {
		return err
	}
	return s.awaitPages()
}

// awaitPages takes the pages that the configuration announced.
func (s *starter) awaitPages() error {
	if !s.cfg.Shared {
		return nil
	}
	r, err := s.link.Receive()
	if err != nil {
		return fmt.Errorf("no shared pages: %w", err)
	}
	m, ok := r.Message().(link.SharePages)
	if !ok {
		return r.Refuse()
	}
	if err := s.pages.take(m.Pages); err != nil {
		return err
	}
	return s.openPages()
}

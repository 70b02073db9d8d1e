package worker

import (
	"fmt"
	"sync"

	"causeway/host/worker/link"
)

// pages are what the worker shares with the device process, the other sessions of its virtual GPU and the scheduler. A page
// stays mapped until the process ends, also when another took its place: whoever looked it up may still use it.
type pages struct {
	mu      sync.Mutex
	mem     [256][]byte
	watches [256][]func(mem []byte)
}

// page is the newest page of a kind; nil: none.
func (p *pages) page(k link.PageKind) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mem[k]
}

// watch calls f with the page of a kind, if it is there, and with each that takes its place, on the link's goroutine.
func (p *pages) watch(k link.PageKind, f func(mem []byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches[k] = append(p.watches[k], f)
	if p.mem[k] != nil {
		f(p.mem[k])
	}
}

// take maps the pages of a Shared message, whose files it takes over.
func (p *pages) take(m link.Message) error {
	defer link.CloseAll(m.Files)
	list, err := link.DecodeShared(m)
	if err != nil {
		return err
	}
	for _, s := range list {
		mem, err := link.MapPage(s.File, s.Kind != link.PageGrant)
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

// awaitPages takes the pages that the configuration announced.
func (s *starter) awaitPages() error {
	if !s.cfg.Shared {
		return nil
	}
	m, err := s.link.Receive()
	if err != nil {
		return fmt.Errorf("no shared pages: %w", err)
	}
	return s.pages.take(m)
}

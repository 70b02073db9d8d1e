package link

import (
	"fmt"
)

// PageKind says what a shared page is for.
type PageKind byte

// Kinds of shared pages.
const (
	PageMemory PageKind = iota + 1 // memory budget of the virtual GPU, read and written by all its sessions
	PageMeter                      // counters of the session, written by its worker
	PageGrant                      // what the scheduler grants, mapped read-only by the worker
	PageUsage                      // what the worker tells the scheduler
	PageBell                       // no page: an eventfd by which the worker has the scheduler look
	PageHost                       // budget of the host's memory, as PageMemory is of the GPU's
	pageKinds
)

// Page is a page that a worker shares with others.
type Page struct {
	Kind PageKind
	File int // a sealed memfd, as of sys.NewPage; of PageBell an eventfd
}

// GatePages are what a session of host/schedule has for its worker: the grant, the usage and the bell, whose files stay the session's.
func GatePages(grant, usage, bell int) []Page {
	return []Page{{PageGrant, grant}, {PageUsage, usage}, {PageBell, bell}}
}

// SharedMessage hands pages to a worker.
func SharedMessage(pages []Page) Message {
	m := Message{Type: Shared}
	for _, p := range pages {
		m.Payload = append(m.Payload, byte(p.Kind))
		m.Files = append(m.Files, p.File)
	}
	return m
}

// DecodeShared reads a Shared message, whose files are the caller's also if it fails.
func DecodeShared(m Message) ([]Page, error) {
	if m.Type != Shared || len(m.Payload) != len(m.Files) {
		return nil, fmt.Errorf("message %d of %d kinds with %d descriptors where shared pages are due", m.Type, len(m.Payload), len(m.Files))
	}
	pages := make([]Page, len(m.Files))
	for i, fd := range m.Files {
		k := PageKind(m.Payload[i])
		if k == 0 || k >= pageKinds {
			return nil, fmt.Errorf("shared page of unknown kind %d", k)
		}
		pages[i] = Page{k, fd}
	}
	return pages, nil
}

package device

import (
	"errors"

	"causeway/host/api"
	"causeway/host/schedule/memory"
	"causeway/host/worker/link"
)

// apart are budgets for rehearsals: they take nothing of what the sessions themselves are to have,
// and all together no more than those may. Else another host could have them take the GPU's memory
// from other vGPUs.
type apart struct{ memory, host *memory.Page }

// apartSlots are a rehearsal's.
type apartSlots struct{ memory, host int }

func newApart(l api.Limits) (a apart, err error) {
	if a.memory, err = memory.New(l.Memory); err == nil {
		a.host, err = memory.New(l.HostMemory)
	}
	if err != nil {
		a.close()
	}
	return a, err
}

func (a apart) close() {
	for _, p := range []*memory.Page{a.memory, a.host} {
		if p != nil {
			p.Close()
		}
	}
}

func (a apart) limit(l api.Limits) {
	a.memory.SetLimit(l.Memory)
	a.host.SetLimit(l.HostMemory)
}

func (a apart) take() (*apartSlots, error) {
	gpu, err := a.memory.Take()
	if err != nil {
		return nil, err
	}
	host, err := a.host.Take()
	if err != nil {
		a.memory.Free(gpu)
		return nil, err
	}
	return &apartSlots{gpu, host}, nil
}

func (a apart) free(s *apartSlots) {
	if s != nil {
		a.memory.Free(s.memory)
		a.host.Free(s.host)
	}
}

// setApart has a worker be a rehearsal's. It runs on routine.
func (s *session) setApart(cfg *link.Config) error {
	slots, err := s.dev.apart.take()
	if err != nil {
		return err
	}
	s.mu.Lock()
	r := s.res
	if r != nil {
		r.apart = slots
	}
	s.mu.Unlock()
	if r == nil {
		s.dev.apart.free(slots)
		return errors.New("a rehearsal without resources")
	}
	cfg.Rehearsal, cfg.MemorySlot, cfg.HostSlot = true, slots.memory, slots.host
	cfg.Pages = []link.Page{{Kind: link.PageMemory, File: s.dev.apart.memory.File()}, {Kind: link.PageHost, File: s.dev.apart.host.File()}}
	return nil
}

package worker

import (
	"fmt"

	"causeway/host/driver"
	"causeway/host/schedule/memory"
	"causeway/host/worker/link"
	"causeway/host/worker/meter"
)

// options are the backend's. Before awaitPages they are those of a session without a page.
func (s *starter) options() driver.Options {
	o := driver.Options{Devices: s.cfg.Devices, Visible: s.cfg.Visible, MemoryLimit: s.cfg.MemoryLimit, Cores: s.cfg.Cores, ReachWorker: s.cfg.ReachWorker, Migratable: s.cfg.Migratable, Rehearsal: s.cfg.Rehearsal}
	if s.budget != nil {
		o.Budget, o.MemoryLimit = s.budget, s.budget.Limit()
	}
	if m := s.meter; m != nil {
		o.Busy = m
	}
	return o
}

// openPages takes up what came with the configuration: the virtual GPU's budgets and the session's
// meter. The scheduler's pages are openGate's.
func (s *starter) openPages() error {
	if mem := s.pages.page(link.PageMemory); mem != nil {
		b, err := memory.Open(mem, s.cfg.MemorySlot, s.cfg.ContextBytes)
		if err != nil {
			return fmt.Errorf("memory budget: %w", err)
		}
		if s.cfg.Adopt && !s.cfg.Parked {
			b.Adopt()
		}
		b.Bring(s.cfg.Brings)
		s.budget = b
	}
	if mem := s.pages.page(link.PageHost); mem != nil {
		b, err := memory.Open(mem, s.cfg.HostSlot, 0)
		if err != nil {
			return fmt.Errorf("budget of host memory: %w", err)
		}
		if s.cfg.Adopt && !s.cfg.Parked {
			b.Adopt()
		}
		s.host = b
	}
	s.meter = meter.Open(s.pages.page(link.PageMeter))
	return nil
}

// hostMemory is what the session may hold of the host's memory, once its pages are there.
func (s *starter) hostMemory() *hostMemory {
	if s.memory == nil {
		s.memory = &hostMemory{limit: s.cfg.HostMemory, all: s.host, log: s.log}
	}
	return s.memory
}

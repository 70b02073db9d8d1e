package soft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// Quiesce implements driver.Snapshotter.
func (s *session) Quiesce(ctx context.Context) error {
	if err := s.queue.idle(ctx); err != nil {
		return fmt.Errorf("software GPU is still working: %w", err)
	}
	return nil
}

// ExportMemory implements driver.Snapshotter. The session must be quiescent.
func (s *session) ExportMemory(fn func(addr, size uint64, r io.Reader) error) error {
	if err := s.Movable(); err != nil {
		return err
	}
	for _, e := range *s.space.intervals.Load() {
		if e.a.kind == pinnedRegion || e.a.freed {
			continue
		}
		if err := fn(e.a.lo, e.a.size, bytes.NewReader(e.a.mem)); err != nil {
			return fmt.Errorf("export %d bytes at %#x: %w", e.a.size, e.a.lo, err)
		}
	}
	return nil
}

// Movable implements driver.Movable: others see the same pages, or no address names them.
func (s *session) Movable() error {
	if s.offers.Any() || len(s.opened) > 0 {
		return errors.New("memory or events are shared with another process")
	}
	if len(s.graphs) > 0 || len(s.execs) > 0 || s.capturing() {
		return errors.New("graphs are not rebuilt elsewhere")
	}
	reachable := map[*physical]bool{}
	for _, m := range s.mappings {
		reachable[m.of] = reachable[m.of] || m.a != nil
	}
	for _, p := range s.mems {
		switch {
		case p.foreign:
			return errors.New("memory of another process is in use")
		case !reachable[p]:
			return errors.New("memory of cuMemCreate is not mapped")
		}
	}
	return nil
}

// ImportMemory implements driver.Snapshotter.
func (s *session) ImportMemory(addr, size uint64, r io.Reader) error {
	a := s.space.lookup(addr)
	if a == nil || a.lo != addr || a.size != size || a.kind == pinnedRegion {
		return fmt.Errorf("import: no allocation of %d bytes at %#x", size, addr)
	}
	if _, err := io.ReadFull(r, a.mem); err != nil {
		return fmt.Errorf("import %d bytes at %#x: %w", size, addr, err)
	}
	return nil
}

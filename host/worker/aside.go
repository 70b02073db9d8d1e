package worker

import (
	"errors"
	"fmt"
	"os"

	"causeway/host/worker/bulk"
	"causeway/host/worker/link"
)

// A session that is suspended stays on its host: its memory goes into a file of its parent's, by several threads, and only what it is made of over the stream.

// aside is a message's file for memory; nil: none came.
func aside(f link.File) *os.File {
	if f.FD() < 0 {
		return nil
	}
	return os.NewFile(uintptr(f.FD()), "memory of a session")
}

// layAside sends a session that stands still, with its memory in a file.
func (w *Worker) layAside(h *handover, snap *snapshot, memory *os.File) error {
	snap.write(h.out)
	if err := h.out.Flush(); err != nil {
		return fmt.Errorf("session: %w", err)
	}
	if _, err := bulk.Write(memory, w.session.ExportMemory); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	return nil
}

// takeBack fills what was allocated again.
func (w *Worker) takeBack(memory *os.File) error {
	info, err := memory.Stat()
	if err != nil {
		return err
	}
	list, err := bulk.Index(memory, info.Size())
	if err == nil {
		err = bulk.Export(memory, list, w.session.ImportMemory)
	}
	if err != nil {
		return errors.Join(errors.New("memory that was laid aside"), err)
	}
	return nil
}

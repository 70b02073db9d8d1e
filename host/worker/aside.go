package worker

import (
	"errors"
	"fmt"
	"os"

	"causeway/host/worker/bulk"
	"causeway/host/worker/link"
)

// A session that is suspended stays on its host: its memory goes into files of its parent's, by
// several threads, and only what it is made of over the stream.

// aside are a message's files for memory; none: none came.
func aside(list []link.File) (files bulk.Files) {
	for _, f := range list {
		files = append(files, os.NewFile(uintptr(f.FD()), "memory of a session"))
	}
	return files
}

// layAside sends a session that stands still, with its memory in files.
func (w *Worker) layAside(h *handover, snap *snapshot, memory bulk.Files) error {
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
func (w *Worker) takeBack(memory bulk.Files) error {
	size, err := memory.Size()
	if err != nil {
		return err
	}
	list, err := bulk.Index(memory, size)
	if err == nil {
		err = bulk.Export(memory, list, w.session.ImportMemory)
	}
	if err != nil {
		return errors.Join(errors.New("memory that was laid aside"), err)
	}
	return nil
}

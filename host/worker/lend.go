package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/remote/sys"
)

// Between workers of one host memory of the GPU is handed over as it is, if the driver and the successor's GPU allow: a table of it follows the
// carrier's descriptors, then descriptors in the same order, and the successor says, behind the snapshot, whether it takes them.

const (
	lentEntry = 8 + 8 + 4
	mostLent  = maxHandoverFiles
)

// lend sends what the session lends, or that it lends nothing: then nobody is asked.
func (h *handover) lend(w *Worker) (driver.Lender, error) {
	l, ok := w.session.(driver.Lender)
	var list []driver.Lent
	var err error
	if ok && !h.elsewhere {
		if list, err = l.Lend(); err != nil {
			w.log.Info("memory is copied, not handed over", "reason", err)
		}
	}
	defer closeLent(list)
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(list)))
	files, bytes := make([]int, 0, len(list)), uint64(0)
	for _, m := range list {
		b = binary.LittleEndian.AppendUint64(b, m.Addr)
		b = binary.LittleEndian.AppendUint64(b, m.Size)
		b = binary.LittleEndian.AppendUint32(b, m.Dev)
		files = append(files, m.File)
		bytes += m.Size
	}
	if _, err = h.Write(b); err == nil && len(list) > 0 {
		err = h.sendFiles(files)
	}
	if len(list) == 0 {
		return nil, err
	}
	w.log.Info("memory is handed over", "pieces", len(list), "bytes", bytes)
	if err != nil {
		l.Keep()
	}
	return l, err
}

func closeLent(list []driver.Lent) {
	for _, m := range list {
		_ = unix.Close(m.File)
	}
}

func (h *handover) receiveLent() ([]driver.Lent, error) {
	var n [4]byte
	if _, err := io.ReadFull(h, n[:]); err != nil {
		return nil, err
	}
	count := binary.LittleEndian.Uint32(n[:])
	if count == 0 {
		return nil, nil
	}
	if count > mostLent {
		return nil, fmt.Errorf("%d pieces", count)
	}
	b := make([]byte, count*lentEntry)
	if _, err := io.ReadFull(h, b); err != nil {
		return nil, err
	}
	files, err := h.receiveFiles()
	if err != nil {
		return nil, err
	}
	if len(files) != int(count) {
		sys.CloseAll(files)
		return nil, fmt.Errorf("%d descriptors for %d pieces", len(files), count)
	}
	list := make([]driver.Lent, 0, count)
	for i, fd := range files {
		e := b[i*lentEntry:]
		list = append(list, driver.Lent{Addr: binary.LittleEndian.Uint64(e), Size: binary.LittleEndian.Uint64(e[8:]), Dev: binary.LittleEndian.Uint32(e[16:]), File: fd})
	}
	return list, nil
}

// borrow has the session take what was lent, and answers.
func (h *handover) borrow(w *Worker, list []driver.Lent) error {
	l, ok := w.session.(driver.Lender)
	if !ok {
		closeLent(list)
		return h.sendVerdict(errors.New("this GPU borrows nothing"))
	}
	return h.sendVerdict(l.Borrow(list))
}

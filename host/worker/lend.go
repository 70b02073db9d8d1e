package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"causeway/host/driver"
	"causeway/remote/sys"
)

// Between workers of one host memory of the GPU is handed over as it is, if the driver and the
// successor's GPU allow: a table of it follows the carrier's descriptors, then descriptors in the
// same order, and the successor says, behind the snapshot, whether it takes them. On another GPU it
// says so when it has made the session again and has read them: whatever it does with what is lent,
// nothing of it changes, and the session can go on where it was.

const (
	lentEntry = 8 + 8 + 4
	mostLent  = maxHandoverFiles
)

// lend sends what the session lends, or that it lends nothing: then nobody is asked.
func (h *handover) lend(w *Worker) (driver.Lender, error) {
	l, ok := w.session.(driver.Lender)
	var list []driver.Lent
	var err error
	if h.elsewhere && ok {
		_, ok = l.(driver.Fetcher)
	}
	if ok {
		if list, err = l.Lend(); err != nil {
			h.copied(w, err)
		}
	}
	defer driver.CloseLent(list)
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
	how := "memory is handed over"
	if h.elsewhere {
		how = "memory is for the other GPU to read"
	}
	w.log.Info(how, "pieces", len(list), "bytes", bytes)
	if err != nil {
		l.Keep()
	}
	return l, err
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

// copied says why memory goes through the host's.
func (h *handover) copied(w *Worker, why error) {
	if h.elsewhere {
		w.log.Info("memory is copied through the host's, not from GPU to GPU", "reason", why)
		return
	}
	w.log.Info("memory is copied, not handed over", "reason", why)
}

// anotherWay begins a verdict on what was lent: it is not taken, for the reason behind it, and the
// session is. Any other text refuses the session.
const anotherWay = "\x00"

// sendLent is the verdict on what was lent.
func (h *handover) sendLent(err error) error {
	if err != nil {
		err = errors.New(anotherWay + err.Error())
	}
	return h.sendVerdict(err)
}

// receiveLentVerdict is sendLent's other side; why is the reason for which bytes have to come
// another way, if they have to.
func (h *handover) receiveLentVerdict() (why, err error) {
	err = h.receiveVerdict()
	if err == nil || h.in.Err() != nil {
		return nil, err
	}
	if text, ok := strings.CutPrefix(err.Error(), anotherWay); ok {
		return errors.New(text), nil
	}
	return nil, fmt.Errorf("successor: %w", err)
}

// borrow has the session take what was lent, and answers.
func (h *handover) borrow(w *Worker, list []driver.Lent) error {
	l, ok := w.session.(driver.Lender)
	if !ok {
		driver.CloseLent(list)
		return h.sendLent(errors.New("this GPU borrows nothing"))
	}
	return h.sendLent(l.Borrow(list))
}

// fetch has the session, which was made again, read what was lent on another GPU, and answers.
func (h *handover) fetch(w *Worker, list []driver.Lent) error {
	f, ok := w.session.(driver.Fetcher)
	if !ok {
		driver.CloseLent(list)
		return h.sendLent(errors.New("this GPU reads no other's memory"))
	}
	begin := time.Now()
	n, err := f.Fetch(list)
	if took := time.Since(begin); err == nil {
		w.log.Info("memory read from the other GPU", "pieces", len(list), "bytes", n, "took", took.Round(time.Microsecond), "gb_s", fmt.Sprintf("%.1f", float64(n)/took.Seconds()/1e9))
	}
	return h.sendLent(err)
}

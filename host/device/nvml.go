package device

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"causeway/host/inventory"
	"causeway/virtio/fs"
)

// Limits of the file "nvml".
const (
	maxQuestions = 64 // READs of all handles that wait for an answer
	answerLimit  = 15 * time.Second
)

// nvmlFile is the control file that the guest's libnvidia-ml.so.1 reads: each open gets the state
// of the vGPU as of its first READ.
type nvmlFile struct {
	inv *inventory.Server
	log *slog.Logger

	mu     sync.Mutex
	open   byUser // files
	asking byUser // READs that wait for an answer
	waits  int    // of all
}

// byUser counts what users of a guest have; who has nothing is not there.
type byUser map[uint32]int

func (b byUser) drop(uid uint32) {
	if b[uid]--; b[uid] <= 0 {
		delete(b, uid)
	}
}

func newNVMLFile(inv *inventory.Server, log *slog.Logger) *nvmlFile {
	return &nvmlFile{inv: inv, log: log, open: byUser{}, asking: byUser{}}
}

// ask counts a READ that waits, of which one user, root excepted, may have half; answered is its
// end.
func (f *nvmlFile) ask(uid uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waits >= maxQuestions || uid != 0 && f.asking[uid] >= maxQuestions/2 {
		return false
	}
	f.waits++
	f.asking[uid]++
	return true
}

func (f *nvmlFile) answered(uid uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waits--
	f.asking.drop(uid)
}

// Open implements fs.ControlFile.
func (f *nvmlFile) Open(c fs.Caller) (fs.ControlHandle, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.UID != 0 && f.open[c.UID] >= mostOthers/2 { // files are as many for all users together
		return nil, syscall.EMFILE
	}
	f.open[c.UID]++
	return &nvmlHandle{file: f, user: c.UID, pending: map[*fs.ReadRequest]struct{}{}}, 0
}

// Expect implements fs.MovableFile: what a file has said already, the guest has read.
func (f *nvmlFile) Expect(c fs.Caller, _ []byte) (fs.MovableHandle, error) {
	h, errno := f.Open(c)
	if errno != 0 {
		return nil, errno
	}
	return h.(*nvmlHandle), nil
}

// Movable implements fs.MovableHandle.
func (h *nvmlHandle) Movable(context.Context) error { return nil }

// SaveHead implements fs.MovableHandle.
func (h *nvmlHandle) SaveHead() ([]byte, error) { return nil, nil }

// Save implements fs.MovableHandle.
func (h *nvmlHandle) Save(io.Writer) error { return nil }

// Load implements fs.MovableHandle.
func (h *nvmlHandle) Load(context.Context, io.Reader) error { return nil }

// closed forgets a file.
func (f *nvmlFile) closed(uid uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open.drop(uid)
}

// nvmlHandle is one open file. pending are the READs whose pages may be touched; the others are
// revoked.
type nvmlHandle struct {
	file *nvmlFile
	user uint32

	answering sync.Mutex // held while the answer is made
	answer    []byte

	mu      sync.Mutex
	pending map[*fs.ReadRequest]struct{}
}

// Read implements fs.ControlHandle.
func (h *nvmlHandle) Read(r *fs.ReadRequest) {
	if !h.file.ask(h.user) {
		r.Complete(0, syscall.EAGAIN)
		return
	}
	h.mu.Lock()
	h.pending[r] = struct{}{}
	h.mu.Unlock()
	go func() {
		defer h.file.answered(h.user)
		h.give(r)
	}()
}

// give answers a READ unless it was revoked meanwhile.
func (h *nvmlHandle) give(r *fs.ReadRequest) {
	b := h.text()
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ours := h.pending[r]; !ours {
		return
	}
	delete(h.pending, r)
	n := 0
	if r.Offset >= 0 && r.Offset < int64(len(b)) {
		b = b[r.Offset:]
		n = r.CopyIn(b[:min(len(b), r.Size)], 0)
	}
	r.Complete(n, 0)
}

// text is the answer, made by the first READ. A machine that cannot be read is no error: the answer
// is empty then, and the guest asks its CUDA library for the names.
func (h *nvmlHandle) text() []byte {
	h.answering.Lock()
	defer h.answering.Unlock()
	if h.answer != nil {
		return h.answer
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	b, err := h.file.inv.Answer(ctx)
	if err != nil {
		h.file.log.Warn("NVML of the guest is limited to names", "error", err)
		b = []byte{}
	}
	h.answer = b
	return b
}

// Write implements fs.ControlHandle.
func (h *nvmlHandle) Write(w *fs.WriteRequest) { w.Complete(0, syscall.EINVAL) }

// Flush implements fs.ControlHandle.
func (h *nvmlHandle) Flush(uint64) {}

// Release implements fs.ControlHandle.
func (h *nvmlHandle) Release() { h.file.closed(h.user) }

// Revoke implements fs.ControlHandle.
func (h *nvmlHandle) Revoke(context.Context, []fs.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.pending {
		r.Complete(0, syscall.EINTR)
	}
	clear(h.pending)
}

// measurable are the processes of the device's sessions.
func (d *Device) measurable() []inventory.Worker {
	var list []inventory.Worker
	for _, s := range d.all() {
		s.mu.Lock()
		if s.proc != nil && s.state == running {
			list = append(list, s.proc)
		}
		s.mu.Unlock()
	}
	return list
}

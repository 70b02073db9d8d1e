package worker

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/verbs"
)

// directLeast is the smallest copy that the adapter moves by itself: before that the stream's work
// is waited for, and fewer bytes are had sooner with the calls.
const directLeast = 64 << 10

// gpuDirect has the adapter of a session's frames move bytes between guest memory and the GPU's.
// What of the GPU's memory it knows outlives connections: it is the adapter's.
type gpuDirect struct {
	regions *verbs.GPURegions
	memory  remote.DirectMemory
	likely  atomic.Bool // the last copy went so
}

var _ driver.Direct = (*Worker)(nil)

// direct has copies go so. The session is not running yet.
func (w *Worker) direct(r *verbs.GPURegions) {
	m, ok := w.memory.(remote.DirectMemory)
	if r == nil || !ok {
		return
	}
	w.gpu = &gpuDirect{regions: r, memory: m}
	if w.early != nil {
		w.early.passes = func(size uint64) bool { return w.gpu.likely.Load() && w.Direct(size) }
	}
}

// Direct implements driver.Direct.
func (w *Worker) Direct(size uint64) bool {
	return w.gpu != nil && size >= directLeast && !w.gpu.regions.Off()
}

// MoveDirect implements driver.Direct.
func (w *Worker) MoveDirect(a *wire.MemcpyStagedArgs, m driver.DeviceMemory) (done bool, err error) {
	if !m.Holds(a.Device, a.Size) {
		return false, nil
	}
	defer func() { w.gpu.likely.Store(done) }()
	mem, leave, ok := w.gpu.regions.Use(verbs.GPUMemory{Address: m.Address, Size: m.Size, Serial: m.Serial, Export: exporting(m.Export)})
	if !ok {
		return false, nil
	}
	defer leave()
	done, err = w.gpu.memory.MoveDirect(a.Region, a.Offset, mem, a.Device-m.Address, a.Size, a.Direction == 0)
	if done && a.Direction == 0 && w.early != nil {
		w.early.pass(*a)
	}
	return done, err
}

// exporting is export, where a GPU of which no memory can be had so is asked once.
func exporting[F any](export func() (F, uint64, error)) func() (F, uint64, error) {
	return func() (F, uint64, error) {
		f, off, err := export()
		if errors.Is(err, driver.ErrNoFiles) {
			err = fmt.Errorf("%w: %w", verbs.ErrNoWay, err)
		}
		return f, off, err
	}
}

// ForgetDirect implements driver.Direct.
func (w *Worker) ForgetDirect(address, size uint64) {
	if w.gpu != nil {
		w.gpu.regions.Forget(address, size)
	}
}

// NeverDirect implements driver.Direct.
func (w *Worker) NeverDirect(why error) { w.gpu.regions.Refuse(why) }

// endDirect ends what the adapter knows. Nothing of the session is executed any more.
func (w *Worker) endDirect() {
	if w.gpu != nil {
		w.gpu.regions.Close()
	}
}

// gpuOff is what people are told of a server that does not use it.
const gpuOff = "GPU memory through the server's: remote.gpu_direct is off"

// carriedOver is what a session's frames go over, in words, as the parent is told.
type carriedOver struct {
	mu    sync.Mutex
	frame string      // of the frames
	by    *verbs.Conn // whose words these are; nil: nobody's
	gpu   string      // of GPU memory, where adapters may reach it; empty: not known yet
}

// tell changes what is known, and sends the parent that.
func (s *starter) tell(change func(o *carriedOver)) error {
	s.way.mu.Lock()
	defer s.way.mu.Unlock()
	change(&s.way)
	return s.sendWayLocked()
}

// sendWayLocked sends the parent what is known. way.mu is held.
func (s *starter) sendWayLocked() error {
	text := s.way.frame
	if s.way.gpu != "" && !strings.HasPrefix(text, onTCP) {
		text += ", " + s.way.gpu
	}
	return s.link.Send(link.Carried{Over: text})
}

// gpuOver has GPU memory reached by the adapter of a connection, at the server's end, and the
// parent told how that goes.
func (s *starter) gpuOver(c *verbs.Conn, client bool) {
	switch {
	case client:
	case !s.cfg.GPUDirect:
		s.way.gpu = gpuOff
	default:
		s.rdma.gpus = verbs.NewGPURegions(c.Adapter(), func(text string) {
			s.log.Info("GPU memory and the adapter", "how", text)
			if err := s.tell(func(o *carriedOver) { o.gpu = text }); err != nil {
				s.log.Warn("the parent is not told how GPU memory is reached", "error", err)
			}
		})
	}
}

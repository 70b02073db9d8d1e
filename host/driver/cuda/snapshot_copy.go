package cuda

import (
	"fmt"
	"io"

	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

// mover copies between the GPU and a stream of bytes, through host memory: where the stream has its
// bytes if that is pinned, else its own.
type mover struct {
	s    *session
	size uint64 // of buf, when there is one
	buf  bind.Host
	free func()

	large bind.Registered // pieces for large memory, when there are some

	sumsCtx bind.Context // retained, when blocks have been summed up
	sums    passing
}

// pinned is for many pieces, through memory that the GPU reaches, which takes long to make.
func (m *mover) pinned() (bind.Host, error) {
	r, res := newPassing(m.s.drv, pieceSize)
	if res != cuda.Success {
		return bind.Host{}, fmt.Errorf("memory to copy through: %w", res)
	}
	m.free = func() { r.free(m.s.drv) }
	return r.Host(), nil
}

// moverOf is one for pieces of size bytes together: a session may have a hundred thousand small
// allocations.
func (s *session) moverOf(size uint64) (*mover, error) {
	if res := s.anyContext(0); res != cuda.Success {
		return nil, fmt.Errorf("a context to copy in: %w", res)
	}
	return &mover{s: s, size: size}, nil
}

// room is memory of its own to copy through.
func (m *mover) room() (bind.Host, error) {
	if m.free != nil {
		return m.buf, nil
	}
	if m.size > mostPlain {
		var err error
		m.buf, err = m.pinned()
		return m.buf, err
	}
	b := bind.NewBuffer(mostPlain)
	m.buf, m.free = b.Host(), b.Free
	return m.buf, nil
}

func (m *mover) close() {
	if m.free != nil {
		m.free()
	}
	m.endPieces()
	m.endSums()
}

// mostPlain is the most bytes for which memory that the GPU reaches is not worth making.
const mostPlain = 256 << 10

// Pin implements driver.Pinner.
func (s *session) Pin(mem []byte) (release func(), err error) {
	if res := s.anyContext(0); res != cuda.Success {
		return nil, fmt.Errorf("a context to register memory in: %w", res)
	}
	h, _ := bind.Mapped(mem, 0, uint64(len(mem)))
	r, res := s.drv.Register(h)
	if res != cuda.Success {
		return nil, fmt.Errorf("register %d bytes: %w", len(mem), res)
	}
	s.shown = r
	return func() {
		s.shown = bind.Registered{}
		if s.anyContext(0) == cuda.Success {
			s.note(s.drv.Unregister(r))
		}
	}, nil
}

// shownOf is bytes of what Pin pinned as the driver takes them, false if they lie elsewhere.
func (s *session) shownOf(p []byte) (bind.Host, bool) {
	h, ok := bind.Mapped(p, 0, uint64(len(p)))
	return h, ok && s.shown.Host().Holds(h)
}

// anyContext makes a context current: that one, or if it is gone any.
func (s *session) anyContext(id uint32) cuda.Result {
	if s.useContext(id) == cuda.Success {
		return cuda.Success
	}
	heir, ok := s.heir(0)
	if !ok {
		return cuda.ErrorInvalidContext
	}
	return s.useContext(heir)
}

// out copies what is in GPU memory to the host's, in copies back; both wait.
func (m *mover) out(to bind.Host, from bind.Mem) error {
	return m.wait(m.s.drv.MemcpyDtoHAsync(to, from, bind.StreamLegacy))
}

func (m *mover) in(to bind.Mem, from bind.Host) error {
	return m.wait(m.s.drv.MemcpyHtoDAsync(to, from, bind.StreamLegacy))
}

func (m *mover) wait(res cuda.Result) error {
	if res == cuda.Success {
		res = m.s.drv.StreamSynchronize(bind.StreamLegacy)
	}
	return errorOf(m.s.note(res))
}

// memReader is memory of the GPU as a stream of bytes.
type memReader struct {
	m    *mover
	mem  bind.Mem
	done uint64
	rest []byte // of the last piece
}

// Read implements io.Reader.
func (d *memReader) Read(p []byte) (int, error) {
	if len(d.rest) == 0 {
		n := d.mem.Size() - d.done
		if n == 0 {
			return 0, io.EOF
		}
		to, direct := d.m.s.shownOf(p)
		if !direct {
			var err error
			if to, err = d.m.room(); err != nil {
				return 0, err
			}
		}
		to, _ = to.Slice(0, min(n, to.Size()))
		from, _ := d.mem.Slice(d.done, to.Size())
		if err := d.m.out(to, from); err != nil {
			return 0, err
		}
		d.done += to.Size()
		if direct {
			return int(to.Size()), nil
		}
		d.rest = to.Bytes()
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// memWriter is memory of the GPU that is written from its beginning.
type memWriter struct {
	m    *mover
	mem  bind.Mem
	done uint64
	held uint64 // bytes behind done that wait in the mover's own memory
}

// Write implements io.Writer.
func (d *memWriter) Write(p []byte) (int, error) {
	if uint64(len(p)) > d.mem.Size()-d.done-d.held {
		return 0, io.ErrShortWrite
	}
	if from, ok := d.m.s.shownOf(p); ok {
		if err := d.flush(); err != nil {
			return 0, err
		}
		to, _ := d.mem.Slice(d.done, from.Size())
		d.done += from.Size()
		return len(p), d.m.in(to, from)
	}
	for rest := p; len(rest) > 0; {
		buf, err := d.m.room()
		if err != nil {
			return 0, err
		}
		n := copy(buf.Bytes()[d.held:], rest)
		d.held, rest = d.held+uint64(n), rest[n:]
		if d.held == buf.Size() {
			if err := d.flush(); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

func (d *memWriter) flush() error {
	if d.held == 0 {
		return nil
	}
	from, _ := d.m.buf.Slice(0, d.held)
	to, _ := d.mem.Slice(d.done, d.held)
	d.done, d.held = d.done+d.held, 0
	return d.m.in(to, from)
}

// fill writes memory of the GPU.
func (m *mover) fill(mem bind.Mem, r io.Reader) error {
	if _, own := r.(io.WriterTo); !own && mem.Size() >= bulkLeast {
		return m.fillBulk(mem, r)
	}
	to := &memWriter{m: m, mem: mem}
	if _, err := io.Copy(to, r); err != nil {
		return err
	}
	if to.done+to.held < mem.Size() {
		return io.ErrUnexpectedEOF
	}
	return to.flush()
}

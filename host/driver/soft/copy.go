package soft

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime/debug"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

const (
	// inlineBytes is the largest memory operation that the worker does itself when nothing is
	// before it.
	inlineBytes = 64 << 10
	// maxReplyCopy bounds a copy that travels inside a reply.
	maxReplyCopy = 16 << 20
	// carrySize is how much of a region that is not mapped is read or written at a time.
	carrySize = 1 << 20
)

// inline runs a task's work on the worker goroutine. The context may have failed since the caller
// looked: by the very task that is no longer before this one.
func (s *session) inline(g *gpuContext, run func() cuda.Result) cuda.Result {
	if res := g.sticky(); res != cuda.Success {
		return res
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	res := guarded(run)
	if res.Sticky() {
		s.failed(g, res)
	}
	return res
}

// Memcpy copies between addresses that the GPU reaches.
func (s *session) Memcpy(c *wire.Call, a *wire.MemcpyArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success || a.Size == 0 {
		return res
	}
	dst, ok1 := s.space.bytes(a.Dst, a.Size)
	src, ok2 := s.space.bytes(a.Src, a.Size)
	if !ok1 || !ok2 {
		return cuda.ErrorInvalidValue
	}
	return s.do(st, a.Size, func() cuda.Result {
		copy(dst, src)
		return cuda.Success
	})
}

// MemcpyBatch copies in any order: that of the list will do. Captured, each copy is a node.
func (s *session) MemcpyBatch(c *wire.Call, a *wire.MemcpyBatchArgs) cuda.Result {
	if len(a.Pieces)%wire.MemcpyBatchPiece != 0 {
		return cuda.ErrorInvalidValue
	}
	for p := a.Pieces; len(p) > 0; p = p[wire.MemcpyBatchPiece:] {
		word := binary.LittleEndian.Uint64
		m := &wire.MemcpyArgs{Dst: word(p), Src: word(p[8:]), Size: word(p[16:]), Stream: a.Stream}
		done, res := s.Admit(c, m, nil)
		if !done {
			res = s.Memcpy(c, m)
		}
		if res != cuda.Success {
			return res
		}
	}
	return cuda.Success
}

// MemcpyWait copies between addresses that the GPU reaches and answers when the bytes are there.
func (s *session) MemcpyWait(c *wire.Call, a *wire.MemcpyWaitArgs) cuda.Result {
	if res := s.Memcpy(c, &wire.MemcpyArgs{Dst: a.Dst, Src: a.Src, Size: a.Size, Stream: a.Stream}); res != cuda.Success {
		return res
	}
	return s.StreamSynchronize(c, &wire.StreamSynchronizeArgs{Stream: a.Stream})
}

// MemcpyHtoD copies bytes that came inside the record.
func (s *session) MemcpyHtoD(c *wire.Call, a *wire.MemcpyHtoDArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success || len(a.Src) == 0 {
		return res
	}
	dst, ok := s.space.bytes(a.Dst, uint64(len(a.Src)))
	if !ok {
		return cuda.ErrorInvalidValue
	}
	deps := s.before(st)
	if len(deps) == 0 {
		src := a.Src
		return s.inline(st.ctx, func() cuda.Result {
			copy(dst, src)
			return cuda.Success
		})
	}
	src := bytes.Clone(a.Src)
	s.enqueue(st, &task{bytes: int64(len(src)), run: func() cuda.Result {
		copy(dst, src)
		return cuda.Success
	}}, deps)
	return cuda.Success
}

// MemcpyDtoH copies a few bytes into the reply.
func (s *session) MemcpyDtoH(c *wire.Call, a *wire.MemcpyDtoHArgs, r *wire.MemcpyDtoHReply) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success || a.Size == 0 {
		return res
	}
	src, ok := s.space.bytes(a.Src, uint64(a.Size))
	if !ok || a.Size > maxReplyCopy {
		return cuda.ErrorInvalidValue
	}
	deps := s.before(st)
	if len(deps) == 0 {
		out := make([]byte, len(src))
		res := s.inline(st.ctx, func() cuda.Result {
			copy(out, src)
			return cuda.Success
		})
		r.Dst = out
		return res
	}
	p, g := c.Later(), st.ctx
	s.enqueue(st, &task{always: true, bytes: int64(len(src)), run: func() cuda.Result {
		res := s.outcome(g)
		var reply wire.MemcpyDtoHReply
		if res == cuda.Success {
			reply.Dst = make([]byte, len(src))
			res = guarded(func() cuda.Result {
				copy(reply.Dst, src)
				return cuda.Success
			})
		}
		p.Done(res, &reply)
		return res
	}}, deps)
	return cuda.Success
}

// staged finds the bytes of a region that a copy names, and notes that the copy uses it.
func (s *session) staged(id uint32, off, size uint64) (driver.Region, *region, bool) {
	known := s.regions[id]
	reg, ok := s.host.Region(id)
	if !ok || known == nil || off > reg.Size || size > reg.Size-off {
		return reg, nil, false
	}
	if reg.Mem != nil && (off > uint64(len(reg.Mem)) || size > uint64(len(reg.Mem))-off) {
		return reg, nil, false
	}
	return reg, known, true
}

// MemcpyStaged copies through a staging region and then stores the completion word, also when the
// copy cannot be done: the guest waits for it.
func (s *session) MemcpyStaged(c *wire.Call, a *wire.MemcpyStagedArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	reg, known, ok := s.staged(a.Region, a.Offset, a.Size)
	if !ok || a.Direction > 1 || a.Word >= wire.WordCount {
		return cuda.ErrorInvalidValue
	}
	var dev []byte
	if a.Size > 0 {
		if dev, ok = s.space.bytes(a.Device, a.Size); !ok {
			return cuda.ErrorInvalidValue
		}
	}
	own := *a
	var by driver.Direct
	var whole driver.DeviceMemory
	if reg.Mem == nil {
		by, whole, _ = s.direct(a)
	}
	s.transfer(st, a.Size, completion{true, a.Word, a.Value}, []operand{{reg: reg, users: known}}, func() cuda.Result {
		if by != nil {
			if done, res := moveDirect(by, whole, &own); done {
				return res
			}
		}
		if own.Direction == 0 && reg.Mem == nil && len(dev) > 0 && len(dev) <= carrySize {
			if reg.ReadStaged(dev, &own) != nil {
				return cuda.ErrorOperatingSystem
			}
			return cuda.Success
		}
		return moveStaged(reg, own.Offset, dev, own.Direction == 0)
	})
	return cuda.Success
}

// completion is the word that tells the guest that a copy is done with its staging bytes.
type completion struct {
	wanted      bool
	word, value uint32
}

// transfer queues a copy that may involve regions, and its completion.
func (s *session) transfer(st *stream, size uint64, done completion, operands []operand, move func() cuda.Result) {
	mapped := true
	for _, v := range operands {
		if v.users != nil {
			v.users.users.Add(1)
			mapped = mapped && v.reg.Mem != nil
		}
	}
	g := st.ctx
	run := func() cuda.Result {
		res := cuda.Success
		if s.outcome(g) == cuda.Success {
			res = guarded(move)
		}
		for _, v := range operands {
			if v.users != nil {
				v.users.users.Add(-1)
			}
		}
		if res != cuda.Success {
			s.failed(g, res) // before the word: the guest looks at it next
			done.value |= wire.WordFailed
		}
		if done.wanted {
			s.host.CompleteWord(done.word, done.value)
		}
		return cuda.Success
	}
	deps := s.before(st)
	if len(deps) == 0 && size <= inlineBytes && mapped {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		run()
		return
	}
	s.enqueue(st, &task{always: true, run: run}, deps)
}

// moveStaged copies between a region and device memory, by the carrier if the region is not mapped.
func moveStaged(reg driver.Region, off uint64, dev []byte, toDevice bool) cuda.Result {
	if reg.Mem != nil {
		stage := reg.Mem[off : off+uint64(len(dev))]
		if toDevice {
			copy(dev, stage)
		} else {
			copy(stage, dev)
		}
		return cuda.Success
	}
	for len(dev) > 0 {
		part := dev[:min(len(dev), carrySize)]
		if res := carry(reg, off, part, toDevice); res != cuda.Success {
			return res
		}
		dev, off = dev[len(part):], off+uint64(len(part))
	}
	return cuda.Success
}

func carry(reg driver.Region, off uint64, p []byte, in bool) cuda.Result {
	var n int
	var err error
	if in {
		n, err = reg.IO.ReadAt(p, int64(off))
	} else {
		n, err = reg.IO.WriteAt(p, int64(off))
	}
	if n != len(p) || err != nil && err != io.EOF {
		return cuda.ErrorOperatingSystem
	}
	return cuda.Success
}

package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/remote"
)

// Memcpy copies between addresses that the GPU reaches.
func (s *session) Memcpy(c *wire.Call, a *wire.MemcpyArgs) cuda.Result {
	st, dst, src, res := s.copyOperands(c, a.Stream, a.Dst, a.Src, a.Size)
	if res != cuda.Success {
		return res
	}
	move := s.drv.MemcpyAsync(dst, src, st.handle)
	return s.issue(c, st, &move)
}

// copyOperands gives the stream of a copy and its two ends, both of which the GPU reaches.
func (s *session) copyOperands(c *wire.Call, id wire.Stream, to, from, size uint64) (st *stream, dst, src bind.Mem, res cuda.Result) {
	st, res = s.submit(c, id)
	if res == cuda.Success {
		dst, res = s.space.Mem(to, size)
	}
	if res == cuda.Success {
		src, res = s.space.Mem(from, size)
	}
	return st, dst, src, res
}

// MemcpyHtoD copies bytes that came inside the record. The ring is memory that the driver knows as
// pinned and would read later; from a copy in ordinary memory it takes the bytes before it returns.
func (s *session) MemcpyHtoD(c *wire.Call, a *wire.MemcpyHtoDArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	dst, res := s.space.Mem(a.Dst, uint64(len(a.Src)))
	if res != cuda.Success {
		return res
	}
	src, ok := s.ordinary(dst.Size())
	if !ok {
		return cuda.ErrorInvalidValue
	}
	copy(src.Bytes(), a.Src)
	return s.note(s.drv.MemcpyHtoDAsync(dst, src, st.handle))
}

// MemcpyDtoH copies a few bytes into the reply: the GPU itself writes them to the start of the
// slot's payload, and then its answer, where it reaches the slot. Else they come by pinned memory
// of ours and the watcher.
func (s *session) MemcpyDtoH(c *wire.Call, a *wire.MemcpyDtoHArgs, r *wire.MemcpyDtoHReply) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if a.Size > bounceSize {
		return cuda.ErrorInvalidValue
	}
	src, res := s.space.Mem(a.Src, uint64(a.Size))
	if res != cuda.Success {
		return res
	}
	p := c.Later()
	if payload, ok := s.slotPayload(p, src.Size()); ok && !s.printing {
		if res := s.note(s.drv.MemcpyDtoHAsync(payload, src, st.handle)); res != cuda.Success {
			p.Done(res, nil)
			return cuda.Success
		}
		return s.answerBehindCopy(c, st)
	}
	f, ok := s.fences.take()
	if !ok {
		p.Done(cuda.ErrorOutOfMemory, nil)
		return cuda.Success
	}
	bytes, _ := f.bounce.Slice(0, src.Size())
	res = s.note(s.drv.MemcpyDtoHAsync(bytes, src, st.handle))
	if res == cuda.Success {
		reply := func() wire.Reply { return &wire.MemcpyDtoHReply{Dst: bytes.Bytes()} }
		res = s.watchFence(f, st, &wait{pending: p, finish: reply})
	}
	if res != cuda.Success {
		s.fences.put(f)
		p.Done(res, nil)
	}
	return cuda.Success
}

// slotPayload is the room for so many bytes of a reply in the slot of the waiting thread, false if
// the GPU does not reach it.
func (s *session) slotPayload(p *wire.Pending, size uint64) (bind.Host, bool) {
	addr, _, ok := p.GPUDone()
	if !ok || size > wire.SlotPayload {
		return bind.Host{}, false
	}
	return s.regions[0].HostAt(addr-remote.SlotGpuDoneOffset+wire.SlotSize-wire.SlotPayload, size)
}

// MemcpyStaged copies between device memory and a staging region; behind it the GPU writes the
// completion word.
func (s *session) MemcpyStaged(c *wire.Call, a *wire.MemcpyStagedArgs) cuda.Result {
	reg, ok := s.host.Region(a.Region)
	idle := false // before the copy
	if ok && reg.Mem == nil {
		st, res := s.stream(c, a.Stream)
		idle = res == cuda.Success && !s.busy(st) && !s.busyBefore(st)
	}
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if !ok || a.Offset > reg.Size || a.Size > reg.Size-a.Offset || a.Word >= wire.WordCount {
		return cuda.ErrorInvalidValue
	}
	device, res := s.space.Mem(a.Device, a.Size)
	if res != cuda.Success {
		return res
	}
	if reg.Mem == nil {
		if done, res := s.copyDirect(a, st); done {
			s.host.CompleteWord(a.Word, ended(a.Value, res))
			return res
		}
		if a.Direction == 0 && a.Size > 0 && (!idle || a.Size > promptCarried) {
			if done, res := s.copyAside(a, reg, device, st); done {
				return res
			}
		}
		return s.copyThroughCarrier(a, reg, device, st)
	}
	host, ok := bind.Mapped(reg.Mem, a.Offset, a.Size)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if a.Direction == 0 {
		res = s.drv.MemcpyHtoDAsync(device, host, st.handle)
	} else {
		res = s.drv.MemcpyDtoHAsync(host, device, st.handle)
	}
	if s.note(res) != cuda.Success {
		s.host.CompleteWord(a.Word, a.Value|wire.WordFailed)
		return res
	}
	return s.completeBehind(st, a.Word, a.Value)
}

// ended is what the completion word of a copy says.
func ended(value uint32, res cuda.Result) uint32 {
	if res != cuda.Success {
		return value | wire.WordFailed
	}
	return value
}

// completeBehind has the GPU store a completion word behind a stream's work.
func (s *session) completeBehind(st *stream, w, value uint32) cuda.Result {
	word, ok := s.regions[0].Mem().Slice(wire.WordsOffset+4*uint64(w), 4)
	if !ok {
		s.host.CompleteWord(w, value|wire.WordFailed)
		return cuda.ErrorNotSupported
	}
	write := s.drv.StreamWriteValue32(st.handle, word, value, 0)
	res := s.note(write.Do())
	if res != cuda.Success {
		s.host.CompleteWord(w, value|wire.WordFailed) // nobody may wait for ever; the error follows
	}
	return res
}

// promptCarried is the largest copy to the GPU through a carrier, in bytes, that is waited for at
// once if its stream has nothing else to do: nobody has to be woken for its word then.
const promptCarried = 64 << 10

// copyAside copies to the GPU through a carrier while the consumer goes on: out of pinned memory,
// and behind it a fence, by which the watcher tells the copy's word. Not done: there is no room.
// The stream's context is current.
func (s *session) copyAside(a *wire.MemcpyStagedArgs, reg driver.Region, device bind.Mem, st *stream) (done bool, res cuda.Result) {
	f, let, err := s.staged(a, reg)
	if f.word == 0 {
		return false, cuda.Success
	}
	word, value := a.Word, a.Value
	end := func(res cuda.Result) {
		let()
		s.host.CompleteWord(word, ended(value, res))
	}
	if err != nil {
		res = cuda.ErrorInvalidValue
	} else if res = s.note(s.drv.MemcpyHtoDAsync(device, f.bounce, st.handle)); res == cuda.Success {
		if res = s.watchFence(f, st, &wait{far: true, ended: end}); res != cuda.Success {
			s.drv.StreamSynchronize(st.handle) // which may read the pad
		}
	}
	if res != cuda.Success {
		s.fences.put(f)
		end(res)
	}
	return true, res
}

// staged is a fence with the bytes of a copy in pinned memory of ours, or of the carrier's, which
// let gives back to it; no fence: there is no room.
func (s *session) staged(a *wire.MemcpyStagedArgs, reg driver.Region) (f fence, let func(), err error) {
	let = func() {}
	var ok bool
	if p := s.fences; p != nil && !p.landings.IsZero() {
		if f, ok = p.take(); !ok {
			return f, let, nil
		}
		at, given, held, err := reg.HoldStaged(a)
		if held {
			if err == nil {
				let = given
			}
			f.bounce, _ = p.landings.Host().Slice(at, a.Size)
			return f, let, err
		}
		p.put(f)
	}
	if f, ok = s.fenceWithPad(a.Size, reg); ok {
		err = reg.ReadStaged(f.bounce.Bytes(), a)
	}
	return f, let, err
}

// fenceWithPad is a fence with that much pinned memory, false if there is none. What is current
// stays so. For a few bytes no such memory is made, nor the carrier's landings pinned.
func (s *session) fenceWithPad(size uint64, reg driver.Region) (fence, bool) {
	p := s.fences
	if p == nil {
		return fence{}, false
	}
	if p.pads.IsZero() && !p.bare && size > promptCarried {
		here := s.current
		if s.useContext(p.ctx) == cuda.Success {
			p.havePads(s.drv, reg.Landings())
		}
		if s.useContext(here) != cuda.Success {
			return fence{}, false
		}
	}
	return p.takePad(size)
}

// copyThroughCarrier serves carriers whose memory cannot be mapped (TCP): through memory of the
// worker's, in order, at once.
func (s *session) copyThroughCarrier(a *wire.MemcpyStagedArgs, reg driver.Region, device bind.Mem, st *stream) cuda.Result {
	room, most := bind.Host{}, min(a.Size, padSize)
	if f, ok := s.fenceWithPad(most, reg); ok {
		defer s.fences.put(f)
		room = f.bounce
	} else {
		if s.carry.IsZero() {
			s.carry = bind.NewBuffer(padSize)
		}
		room = s.carry.Host()
	}
	value := a.Value | wire.WordFailed
	defer func() { s.host.CompleteWord(a.Word, value) }()
	for done := uint64(0); done < a.Size; {
		n := min(a.Size-done, most)
		mem, _ := room.Slice(0, n)
		piece, _ := device.Slice(done, n)
		var res cuda.Result
		if a.Direction == 0 {
			part := *a // one piece is the rule
			if part.Offset += done; n < a.Size {
				part.Size = n
			}
			if reg.ReadStaged(mem.Bytes(), &part) != nil {
				return cuda.ErrorInvalidValue
			}
			res = s.drv.MemcpyHtoDAsync(piece, mem, st.handle)
		} else {
			res = s.drv.MemcpyDtoHAsync(mem, piece, st.handle)
		}
		if res == cuda.Success {
			res = s.drv.StreamSynchronize(st.handle)
		}
		if s.note(res) != cuda.Success {
			return res
		}
		st.done = st.submitted // a wait for it need not ask
		if a.Direction != 0 {
			if _, err := reg.IO.WriteAt(mem.Bytes(), int64(a.Offset+done)); err != nil {
				return cuda.ErrorInvalidValue
			}
		}
		done += n
	}
	value = a.Value
	return cuda.Success
}

// Memset fills memory.
func (s *session) Memset(c *wire.Call, a *wire.MemsetArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	rows := uint64(1)
	if a.Pitch != 0 {
		rows = max(a.Height, 1)
	}
	r, res := s.space.Rect(a.Dst, a.Pitch, a.Width, uint64(a.Element), rows)
	if res != cuda.Success && s.inCapture(st) {
		r, res = s.space.CapturedRect(a.Dst, a.Pitch, a.Width, uint64(a.Element), rows)
	}
	if res != cuda.Success {
		return res
	}
	var call bind.Call
	if !s.drv.Memset(&call, r, a.Element, a.Value, st.handle) {
		return cuda.ErrorInvalidValue
	}
	return s.issue(c, st, &call)
}

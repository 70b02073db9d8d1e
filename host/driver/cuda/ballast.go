package cuda

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

/*
A driver may have room for variables below where they were, in a chunk that was in use when they came to be and is not in this process: what of its own was there is nothing that a replay brings about.
steer keeps it from addresses that it would have to ask the kernel for, and not from those. So code whose variables come out lower is unloaded, that room is filled with variables of modules of no use, and the
code is loaded once more; then they go.
*/

// Sizes of such variables, in bytes: the largest first, which is less than what a driver takes addresses of their own for (of 16 MiB it takes 512 MiB, on an H200). There are never
// more than mostBallast of them.
const (
	ballastFrom, ballastTo = 512 << 10, 256
	mostBallast            = 160
)

// ballastEnv is another largest size, for measurements.
const ballastEnv = "CAUSEWAY_BALLAST"

// ballast is modules that fill room.
type ballast struct {
	d       *bind.Driver
	modules []bind.Module
	in      map[uint64]int // how many lie in a chunk
}

// fill takes the room for variables below an address, in the current context.
func (b *ballast) fill(limit uint64) error {
	from := uint64(ballastFrom)
	if n, err := strconv.ParseUint(os.Getenv(ballastEnv), 10, 32); err == nil && n > 0 {
		from = n
	}
	b.in = map[uint64]int{}
	for size := from; size >= ballastTo; size /= 2 {
		for len(b.modules) < mostBallast {
			m, at, err := b.load(size)
			if err != nil {
				return err
			}
			b.in[at&^(chunk-1)]++
			if at >= limit {
				b.d.ModuleUnload(m)
				break
			}
			b.modules = append(b.modules, m)
		}
	}
	return nil
}

// load is a module with a variable of size bytes, and where that lies.
func (b *ballast) load(size uint64) (m bind.Module, at uint64, err error) {
	text := fmt.Sprintf(".version 6.0\n.target sm_60\n.address_size 64\n.visible .global .align 256 .b8 ballast[%d];\n", size)
	code, err := fatbin.Check([]byte(text), func(int) bool { return false })
	if err != nil {
		return m, 0, err
	}
	im := bind.HoldImage(code, false)
	defer im.Release()
	m, res := b.d.ModuleLoadDataEx(im, nil)
	if res != cuda.Success {
		return m, 0, res
	}
	v, _, res := b.d.ModuleGetGlobal(m, []byte("ballast"))
	if res != cuda.Success {
		b.d.ModuleUnload(m)
		return m, 0, res
	}
	return m, v.Value(), nil
}

func (b *ballast) drop() {
	for _, m := range b.modules {
		b.d.ModuleUnload(m)
	}
	b.modules = nil
}

// tooLow reports the chunk in which the variables of code lay, if a call that is made again has them come out below that.
func (s *session) tooLow(c *wire.Call, of owner) (chunkOf uint64, low bool) {
	if !c.Replay || len(c.Placed) == 0 || c.Ctx == 0 || s.use(c) != cuda.Success {
		return 0, false
	}
	placed := 0
	for _, name := range s.arenas.names[of] {
		at, _, res := s.findVariable(of, []byte(name))
		switch {
		case res != cuda.Success: // as settleVariables passes them by
			continue
		case placed >= len(c.Placed):
			return 0, false
		case constant(name):
			placed++
			continue
		}
		chunkOf = c.Placed[placed] &^ (chunk - 1)
		return chunkOf, at.Value() < chunkOf
	}
	return 0, false
}

// loadedAgain has code that was loaded come out where it was, if it lies too low. reload unloads it, calls what it is given, and loads it.
func (s *session) loadedAgain(c *wire.Call, of owner, reload func(between func()) cuda.Result) cuda.Result {
	limit, low := s.tooLow(c, of)
	if !low {
		return cuda.Success
	}
	b := &ballast{d: s.drv}
	defer b.drop()
	var err error
	res := reload(func() { err = b.fill(limit) })
	slog.Info("code was loaded again, as its variables lay too low", "code", of.String(), "chunk", fmt.Sprintf("%#x", limit), "filled", len(b.modules), "in", fmt.Sprintf("%x", b.in), "error", err)
	return res
}

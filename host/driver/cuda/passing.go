package cuda

import (
	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

// passing is memory of this process that the GPU reaches, through which memory passes on its way from one process to another. It is not the driver's own: that takes the addresses
// for pinned memory from where variables come to lie, and what is loaded later lies elsewhere then than in the other process (6 MiB further for 5 MiB, on an H200).
type passing struct {
	bind.Registered
	buf bind.Buffer
}

func newPassing(d *bind.Driver, size uint64) (p passing, res cuda.Result) {
	p.buf = bind.NewBuffer(int(size))
	if p.Registered, res = d.Register(p.buf.Host()); res != cuda.Success {
		p.buf.Free()
		return passing{}, res
	}
	return p, res
}

// free gives it back, in a context that is current.
func (p *passing) free(d *bind.Driver) cuda.Result {
	if p.IsZero() {
		return cuda.Success
	}
	res := d.Unregister(p.Registered)
	p.buf.Free()
	*p = passing{}
	return res
}

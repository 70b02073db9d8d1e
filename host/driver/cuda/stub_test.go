package cuda

import (
	"unsafe"

	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
)

// agreeingDriver is a driver that agrees to everything, but for functions that tests have others
// for.
func agreeingDriver(others map[string]uint64) *bind.Driver {
	return bind.New(func(symbol string) uint64 {
		if f, ok := others[symbol]; ok {
			return f
		}
		return cudatest.Agreeing(symbol)
	})
}

// made is a handle as a driver would give it.
func made[H any](v uint64) (h H) {
	*(*uint64)(unsafe.Pointer(&h)) = v
	return h
}

// number is a handle's number.
func number[H any](h H) uint64 { return *(*uint64)(unsafe.Pointer(&h)) }

// everywhere is a registration of all addresses, each for the GPU what it is for this process.
func everywhere() registration {
	// Host and mem: where they begin, and how long they are.
	all := [4]uint64{1, 1 << 62, 1, 1 << 62}
	return registration{Registered: *(*bind.Registered)(unsafe.Pointer(&all))}
}

func at(b bind.Buffer) uint64 { return number(b.Host().Address()) }

// registered is memory of this process that the GPU reaches where it lies.
func registered(mem []byte) bind.Registered {
	h, _ := bind.Mapped(mem, 0, uint64(len(mem)))
	all := [2]bind.Host{h, h}
	return *(*bind.Registered)(unsafe.Pointer(&all))
}

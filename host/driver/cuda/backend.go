package cuda

import (
	"fmt"
	"runtime"
	"strings"

	"causeway/cuda"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// ErrNoDriver says that this machine has no usable NVIDIA driver library.
var ErrNoDriver = bind.ErrNoDriver

// Backend is the machine's NVIDIA driver.
type Backend struct {
	drv  *bind.Driver
	warm *warmth // what Warm made ready; nil
}

// New loads the driver library; ErrNoDriver if there is none. It does not initialise the driver: a
// worker must not be initialised before it knows its guest's environment.
func New() (*Backend, error) {
	d, err := bind.Load("libcuda.so.1")
	if err != nil {
		return nil, err
	}
	return &Backend{drv: d}, nil
}

// Name implements driver.Backend.
func (b *Backend) Name() string { return "cuda" }

// Devices implements driver.Backend. It initialises the driver in this process.
func (b *Backend) Devices() ([]driver.DeviceSummary, error) {
	runtime.LockOSThread() // settleAtomics makes a context current
	defer runtime.UnlockOSThread()
	if r := b.drv.Init(0); r != cuda.Success {
		return nil, fmt.Errorf("cuInit: %w; check nvidia-smi", r)
	}
	n, r := b.drv.DeviceGetCount()
	if r != cuda.Success {
		return nil, fmt.Errorf("cuDeviceGetCount: %w", r)
	}
	list := make([]driver.DeviceSummary, 0, n)
	for i := range n {
		info, r := describe(b.drv, uint32(i))
		if r != cuda.Success {
			return nil, fmt.Errorf("GPU %d: %w", i, r)
		}
		list = append(list, driver.DeviceSummary{
			Index: int(i), Name: cStringOf(info.Name[:]), UUID: uuidText(info.Uuid[:]), TotalMem: info.TotalMem,
			PCIBusID: cStringOf(info.PciBusId[:]), Compute: info.Compute, Reach: info.reach(),
		})
	}
	return list, nil
}

// uuidText is a device UUID as nvidia-smi prints it.
func uuidText(u []byte) string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// cStringOf is the text before the first NUL.
func cStringOf(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

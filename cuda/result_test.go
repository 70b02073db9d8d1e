package cuda

import (
	"errors"
	"fmt"
	"testing"
)

func TestResult(t *testing.T) {
	err := fmt.Errorf("allocate: %w", ErrorOutOfMemory)
	var r Result
	if !errors.As(err, &r) || r != 2 || !errors.Is(err, ErrorOutOfMemory) {
		t.Errorf("%v does not carry its result", err)
	}
	if got, want := err.Error(), "allocate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if Success.Err() != nil || ErrorNotReady.Err() == nil {
		t.Error("Err")
	}
	if u := Result(12345); u.Known() || u.Name() != "CUresult(12345)" || u.Text() == "" {
		t.Errorf("unknown code: %v", u)
	}
	for r, want := range map[Result]bool{Success: false, ErrorIllegalAddress: true, ErrorLaunchFailed: true, ErrorInvalidValue: false} {
		if r.Sticky() != want {
			t.Errorf("%s sticky: %v", r.Name(), !want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for name, pair := range map[string][2]int{
		"compute major": {DeviceAttrComputeCapabilityMajor, 75},
		"PCI domain":    {DeviceAttrPCIDomainID, 50},
		"cluster":       {LaunchAttrClusterDimension, 4},
		"dynamic smem":  {FuncAttrMaxDynamicSharedSizeBytes, 8},
		"device memory": {MemoryTypeDevice, 2},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %d, want %d", name, pair[0], pair[1])
		}
	}
}

package cuda_test

import (
	"errors"
	"os"
	"testing"

	"causeway/host/driver"
	"causeway/host/driver/conformance"
	"causeway/host/driver/cuda"
)

// TestConformance needs an NVIDIA driver with a GPU: without one it skips, where one was promised
// (CAUSEWAY_REQUIRE_GPU=1) it fails.
func TestConformance(t *testing.T) {
	b, err := cuda.New()
	if err == nil {
		_, err = b.Devices()
	}
	if err != nil {
		if os.Getenv("CAUSEWAY_REQUIRE_GPU") != "" {
			t.Fatalf("a GPU was promised: %v", err)
		}
		t.Skipf("no NVIDIA GPU here: %v", err)
	}
	conformance.Run(t, func(*testing.T) driver.Backend { return b })
}

func TestNoDriverIsSaidPlainly(t *testing.T) {
	b, err := cuda.New()
	switch {
	case err == nil && b == nil:
		t.Fatal("neither a backend nor an error")
	case err != nil && !errors.Is(err, cuda.ErrNoDriver):
		t.Fatalf("unexpected error: %v", err)
	}
}

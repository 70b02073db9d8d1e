package cuda

import (
	"runtime"
	"testing"

	"causeway/cuda"
)

// TestHostAtomics tries what settleAtomics would try, whatever the driver claims, and that the
// attributes promise no more than that.
func TestHostAtomics(t *testing.T) {
	b, err := New()
	Needed(t, err)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if res := b.drv.Init(0); res != cuda.Success {
		t.Fatal(res)
	}
	lost, tried, res := countAtomics(b.drv, 0)
	if res != cuda.Success || tried == 0 {
		t.Fatalf("%d updates, result %v", tried, res)
	}
	t.Logf("%d of %d updates lost", lost, tried)
	d, res := describe(b.drv, 0)
	if res != cuda.Success {
		t.Fatal(res)
	}
	if native, managed := d.Attrs[cuda.DeviceAttrHostNativeAtomicSupported], d.Attrs[cuda.DeviceAttrConcurrentManagedAccess]; lost > 0 && native+managed != 0 {
		t.Errorf("updates are lost, and the attributes say %d and %d", native, managed)
	}
}

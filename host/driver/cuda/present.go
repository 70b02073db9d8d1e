//go:build !nested

package cuda

import "path/filepath"

// Present reports whether the kernel shows an NVIDIA GPU, without starting the driver: by its
// device nodes, its /proc folder, or the paravirtual device of WSL.
func Present() bool {
	for _, p := range []string{"/dev/nvidia[0-9]*", "/proc/driver/nvidia/gpus/*", "/dev/dxg"} {
		if found, _ := filepath.Glob(p); len(found) > 0 {
			return true
		}
	}
	return false
}

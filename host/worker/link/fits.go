package link

import (
	"slices"
	"strings"

	"causeway/remote"
)

// Fits reports whether a worker that started its driver before a guest said hello may serve it.
// devices is how many devices the worker offers by number; 0: all.
func Fits(h remote.Hello, devices int) bool {
	return h.Flags&remote.EnvOwnDriver == 0 && (h.Flags&remote.EnvFirstDevice == 0 || devices == 1)
}

// harmless are the CUDA_ variables that no driver reads at its start, that are the host's to set,
// or that the guest library obeys itself. The guest library has the same list
// (session/carrier_common.c).
var harmless = []string{
	"CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_DIR", "CUDA_VERSION", "CUDA_TOOLKIT_PATH", "CUDA_TOOLKIT_ROOT_DIR", "CUDA_BIN_PATH",
	"CUDA_INC_PATH", "CUDA_LIB_PATH", "CUDA_LAUNCH_BLOCKING", "CUDA_PKG_VERSION", "CUDA_ARCH_LIST", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE",
}

// EnvFlags is what a guest with this environment would say of it.
func EnvFlags(env []string) uint32 {
	flags := uint32(0)
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case !strings.HasPrefix(name, "CUDA_") || slices.Contains(harmless, name):
		case kv == "CUDA_VISIBLE_DEVICES=0":
			flags |= remote.EnvFirstDevice
		default:
			flags |= remote.EnvOwnDriver
		}
	}
	return flags
}

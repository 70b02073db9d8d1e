package sandbox

import (
	"slices"
	"strconv"
	"strings"
)

// The driver's variables for the cache in which it keeps what it compiled (CUDA programming guide,
// environment variables).
const (
	cachePath    = "CUDA_CACHE_PATH"
	cacheMaxSize = "CUDA_CACHE_MAXSIZE" // bytes
)

// cacheFolder is where workers of one virtual GPU keep compiled kernels: in their own /dev/shm, so
// it ends with them. The driver makes it. It gets half of the space: libcuda's events for other
// processes lie beside it.
const (
	cacheFolder = "/dev/shm/compute-cache"
	cacheSize   = sharedSize / 2
)

// cached reports whether workers can keep compiled kernels for each other: a real GPU's, as one
// user, in a /dev/shm that nobody else sees. The host's own would be a name that anybody can take
// first.
func (s *Space) cached() bool { return s.policy.sharing() && s.policy.User != 0 && s.shm }

// withCache adds the cache to a worker's environment. What stands there is the operator's, and
// holds.
func withCache(env []string) []string {
	set := func(name string) bool {
		return slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	}
	if set(cachePath) {
		return env
	}
	env = append(slices.Clip(env), cachePath+"="+cacheFolder)
	if !set(cacheMaxSize) {
		env = append(env, cacheMaxSize+"="+strconv.Itoa(cacheSize))
	}
	return env
}

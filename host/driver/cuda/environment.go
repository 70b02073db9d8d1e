package cuda

import (
	"bytes"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"

	"causeway/host/driver"
)

// guests are the variables that a guest may set for its worker's driver (CUDA programming guide,
// environment variables). Those that name files, libraries, pipes or debuggers are the host's:
// CUDA_CACHE_PATH, CUDA_LOG_FILE, CUDA_COREDUMP_FILE, CUDA_INJECTION64_PATH,
// CUDA_MPS_PIPE_DIRECTORY; so is what a later driver may read.
var guests = []string{
	"CUDA_AUTO_BOOST", "CUDA_BINARY_LOADER_THREAD_COUNT", cacheDisable, "CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT",
	"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS", deviceOrder, "CUDA_DISABLE_JIT", "CUDA_DISABLE_PTX_JIT",
	"CUDA_FORCE_JIT", "CUDA_FORCE_PRELOAD_LIBRARIES", "CUDA_FORCE_PTX_JIT", "CUDA_GRAPHS_USE_NODE_PRIORITY", "CUDA_LAUNCH_BLOCKING",
	"CUDA_MANAGED_FORCE_DEVICE_ALLOC", "CUDA_MODULE_DATA_LOADING", "CUDA_MODULE_LOADING", "CUDA_SCALE_LAUNCH_QUEUES",
}

const (
	cacheDisable   = "CUDA_CACHE_DISABLE"
	deviceOrder    = "CUDA_DEVICE_ORDER"
	visibleDevices = "CUDA_VISIBLE_DEVICES"
)

// variable is one of the environment.
type variable struct{ name, value string }

// offered names the devices that a session may use, for CUDA_VISIBLE_DEVICES; nil: all.
func offered(o driver.Options) []string {
	if o.Visible != nil || o.Devices == nil {
		return o.Visible
	}
	list := []string{}
	for _, d := range o.Devices {
		list = append(list, strconv.Itoa(d))
	}
	return list
}

// applyEnvironment sets the variables that the driver reads itself.
func applyEnvironment(env []byte, offered []string) {
	set, dropped := compose(env, offered, os.LookupEnv)
	for _, v := range set {
		setenv(v.name, v.value)
	}
	if len(dropped) > 0 {
		slog.Info("variables of the guest that are not its driver's to see", "names", dropped[:min(len(dropped), 16)], "count", len(dropped))
	}
}

// compose makes what a guest's environment, NUL-separated, changes in the worker's.
// CUDA_VISIBLE_DEVICES of the guest counts within the devices offered to it. Whether the driver
// caches what it compiles is the guest's choice if host, the worker's own environment, has none.
// dropped are the names of the others.
func compose(env []byte, offered []string, host func(name string) (string, bool)) (out []variable, dropped []string) {
	visible, restricted := "", false
	for _, kv := range bytes.Split(env, []byte{0}) {
		name, value, ok := strings.Cut(string(kv), "=")
		if !ok {
			continue
		}
		if name == visibleDevices {
			visible, restricted = value, true
			continue
		}
		if _, set := host(name); !slices.Contains(guests, name) || set && name == cacheDisable {
			dropped = append(dropped, name)
			continue
		}
		out = append(out, variable{name, value})
	}
	if offered == nil {
		if restricted {
			out = append(out, variable{visibleDevices, visible})
		}
		return out, dropped
	}
	return append(out, variable{visibleDevices, composeVisible(offered, visible, restricted)}, variable{deviceOrder, "PCI_BUS_ID"}), dropped
}

// composeVisible maps a guest's list of ordinals through the offered ones; like the driver it stops
// at the first entry that names no device.
func composeVisible(offered []string, visible string, restricted bool) string {
	if !restricted {
		return strings.Join(offered, ",")
	}
	var list []string
	for _, f := range strings.Split(visible, ",") {
		i, err := strconv.Atoi(strings.TrimSpace(f))
		if err != nil || i < 0 || i >= len(offered) {
			break
		}
		list = append(list, offered[i])
	}
	if len(list) == 0 {
		return "-1"
	}
	return strings.Join(list, ",")
}

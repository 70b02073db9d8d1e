package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"

	"causeway/host/driver"
)

// Drivers that Causeway was tried with, and the oldest whose interfaces it needs.
const (
	triedDriver  = 580
	oldestDriver = 525
)

var nvrm = regexp.MustCompile(`NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s`)

// nvidia says whether the host has a GPU of NVIDIA's on its buses.
func (m *Machine) nvidia() bool {
	for _, path := range m.glob("/sys/bus/pci/devices/*/vendor") {
		vendor, _ := m.text(path)
		class, _ := m.text(strings.TrimSuffix(path, "vendor") + "class")
		if vendor == "0x10de" && (strings.HasPrefix(class, "0x0300") || strings.HasPrefix(class, "0x0302")) {
			return true
		}
	}
	return false
}

func nvidiaDriver(_ context.Context, m *Machine) Result {
	text, there := m.text("/proc/driver/nvidia/version")
	if !there {
		if m.nvidia() {
			return failed("Install it (`apt install nvidia-driver`, or NVIDIA's own package), then `modprobe nvidia`.", "there is a GPU, but no driver is loaded")
		}
		return warning("Nothing, if that is meant: --gpu soft works. Otherwise check `lspci -d 10de:`.", "no NVIDIA GPU: only the software GPU is offered")
	}
	found := nvrm.FindStringSubmatch(text + " ")
	if found == nil {
		return warning("Look at /proc/driver/nvidia/version.", "the driver does not tell its version: %s", firstLine(text))
	}
	switch major, _ := version(found[1]); {
	case major < oldestDriver:
		return failed(fmt.Sprintf("Install driver %d or newer.", triedDriver), "driver %s is too old: %d or newer is needed", found[1], oldestDriver)
	case major < triedDriver:
		return warning(fmt.Sprintf("Install driver %d or newer when you can.", triedDriver), "driver %s is older than those that Causeway was tried with (%d)", found[1], triedDriver)
	case major > triedDriver:
		return warning("Run your programs once; report what fails. Entries that newer drivers add are refused by name.", "driver %s is newer than those that Causeway was tried with (%d)", found[1], triedDriver)
	}
	return ok("driver %s", found[1])
}

func deviceNodes(_ context.Context, m *Machine) Result {
	if !m.exists("/proc/driver/nvidia/version") {
		return ok("none needed without a driver")
	}
	for _, path := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm"} {
		if !m.exists(path) {
			return failed("`nvidia-modprobe -u -c 0`, or start nvidia-persistenced, which makes them at boot.", "%s is missing: workers, which are not root, cannot make it", path)
		}
	}
	if len(m.glob("/dev/nvidia[0-9]*")) == 0 {
		return failed("`nvidia-modprobe -c 0`, or start nvidia-persistenced, which makes them at boot.", "no /dev/nvidia0")
	}
	return ok("nvidiactl, nvidia-uvm and nvidia[0-9]*")
}

// gpuLine is what `causeway gpus --local --json` prints.
type gpuLine struct {
	Backend string `json:"backend"`
	Index   int    `json:"index"`
	Name    string `json:"name"`
	Driver  string `json:"driver"`
	MIG     string `json:"mig"`

	Reach driver.Reach `json:"reach"`
}

// list has a child load the drivers' libraries.
func (m *Machine) list(ctx context.Context) ([]gpuLine, error) {
	args := append(append([]string{}, m.Program[1:]...), "gpus", "--local", "--json")
	text, err := m.Run(ctx, m.Program[0], args...)
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && !exit.Exited() {
			return nil, fmt.Errorf("the child that loads the driver ended by a signal (%w)", err)
		}
		return nil, fmt.Errorf("%w: %s", err, firstLine(text))
	}
	var list []gpuLine
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("%w in %q", err, firstLine(text))
	}
	return list, nil
}

func gpus(ctx context.Context, m *Machine) Result {
	list, err := m.list(ctx)
	if err != nil {
		return failed("Run it: `causeway gpus --local`.", "the GPUs cannot be listed: %v", err)
	}
	var real []string
	managed := true
	for _, g := range list {
		if g.Backend == "cuda" {
			real = append(real, g.Name)
			managed = managed && g.Driver != ""
		}
	}
	switch {
	case len(real) == 0 && m.exists("/proc/driver/nvidia/version"):
		return failed("Run `causeway gpus --local` and `nvidia-smi`; libcuda.so.1 comes with the driver's package (Debian: libcuda1).", "the driver is loaded, but libcuda offers no GPU")
	case len(real) == 0:
		return ok("the software GPU only")
	case !managed:
		return warning("Install libnvidia-ml.so.1 of the same version as the driver (Debian: libnvidia-ml1).", "%d GPUs, but libnvidia-ml does not load: health and use are not known", len(real))
	}
	return ok("%s", strings.Join(real, ", "))
}

// kernelsReach: what a guest's kernel can address, it reads and writes, and the worker trusts its
// own memory.
func kernelsReach(ctx context.Context, m *Machine) Result {
	list, err := m.list(ctx)
	if err != nil {
		return ok("not known: see GPUs")
	}
	for _, g := range list {
		if g.Reach == driver.ReachNone {
			continue
		}
		const found = "kernels on %s can address all memory of a worker (%s)"
		if m.ReachWorker {
			return warning("A guest owns its worker; to end that "+g.Reach.Remedy()+".", found+", and isolation.kernels_reach_worker permits it", g.Name, g.Reach)
		}
		return failed("To have vGPUs "+g.Reach.Remedy()+"; or permit it: kernels_reach_worker = true below [isolation].", found+": no session starts", g.Name, g.Reach)
	}
	return ok("what is allocated for them or registered, and no other memory of workers")
}

func mig(ctx context.Context, m *Machine) Result {
	list, err := m.list(ctx)
	if err != nil {
		return ok("not known: see GPUs")
	}
	var on []string
	for _, g := range list {
		if g.MIG == "on" {
			on = append(on, fmt.Sprint(g.Index))
		}
	}
	if len(on) == 0 {
		return ok("off")
	}
	return ok("on for GPU %s: vGPUs take slices, by --mig PROFILE or by UUID (`nvidia-smi -L`); without slices it offers nothing", strings.Join(on, ", "))
}

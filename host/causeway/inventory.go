package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/driver/cuda"
	"causeway/host/inventory"
	"causeway/host/worker/link"
)

// What the software GPU says of its driver.
const (
	softDriver = "580.0.0"
	softNVML   = "13.580.0.0"
	softCUDA   = 13000
)

// inventoryCommand is the process in which the driver's management library is read: those who serve
// guests never load it.
func inventoryCommand() *cobra.Command {
	var gpu string
	var devices []int
	var watch bool
	c := &cobra.Command{
		Use:    "inventory",
		Short:  "Tell how the GPUs are (started by run and device)",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signal.Ignore(unix.SIGHUP, unix.SIGINT)
			return serveInventory(cmd.InOrStdin(), cmd.OutOrStdout(), gpu, devices, watch)
		},
	}
	c.Flags().StringVar(&gpu, "gpu", "auto", "backend")
	c.Flags().IntSliceVar(&devices, "devices", nil, "ordinals offered")
	c.Flags().BoolVar(&watch, "watch", false, "tell faults and MIG slices too")
	return c
}

func serveInventory(in io.Reader, out io.Writer, gpu string, devices []int, watch bool) error {
	src, err := openInventory(gpu, devices)
	if err != nil {
		return err
	}
	if s, ok := src.(*inventory.NVML); ok && watch {
		s.Watch()
	}
	return inventory.Serve(in, out, src)
}

// inventoryClient starts inventoryCommand for a session's configuration.
func inventoryClient(cfg link.Config) *inventory.Client {
	args := []string{"/proc/self/exe", "inventory", "--gpu", cfg.GPU}
	for _, d := range cfg.Devices {
		args = append(args, "--devices", fmt.Sprint(d))
	}
	return &inventory.Client{Command: args, Env: envFor(cfg.Visible)}
}

// openInventory opens what tells of a vGPU's devices. devices nil: all.
func openInventory(gpu string, devices []int) (inventory.Source, error) {
	if gpu != "cuda" && (gpu != "auto" || !cuda.Present()) {
		return openPlain(gpu, devices)
	}
	lib, err := inventory.LoadNVML("libnvidia-ml.so.1")
	if err != nil {
		return nil, err
	}
	return inventory.OpenNVML(lib, func(ids []inventory.Identity) ([]int, error) { return inOrder(ids, devices) })
}

// openPlain is openInventory for software GPUs.
func openPlain(gpu string, devices []int) (inventory.Source, error) {
	if gpu == "auto" {
		gpu = "soft"
	}
	b, err := findBackend(gpu)
	if err != nil {
		return nil, err
	}
	list, err := b.Devices()
	if err != nil {
		return nil, err
	}
	p := &inventory.Plain{Devices: list, Driver: softDriver, NVML: softNVML, CUDA: softCUDA}
	if devices == nil {
		return p, nil
	}
	p.Devices = nil
	for _, d := range devices {
		if d < 0 || d >= len(list) {
			return nil, fmt.Errorf("there is no software GPU %d", d)
		}
		p.Devices = append(p.Devices, list[d])
	}
	return p, nil
}

// inOrder finds the vGPU's devices, which are numbered as CUDA numbers them, among NVML's. Both
// orders are the same on a machine whose GPUs are all alike, unless an environment says otherwise:
// then CUDA is asked.
func inOrder(ids []inventory.Identity, devices []int) ([]int, error) {
	order := make([]int, len(ids))
	for i := range order {
		order[i] = i
	}
	if !sameOrder(ids) {
		b, err := newCUDA()
		if err != nil {
			return nil, err
		}
		list, err := b.Devices()
		if err != nil {
			return nil, err
		}
		if order, err = byUUID(ids, list); err != nil {
			return nil, err
		}
	}
	if devices == nil {
		return order, nil
	}
	var picked []int
	for _, d := range devices {
		if d < 0 || d >= len(order) {
			return nil, fmt.Errorf("there is no GPU %d", d)
		}
		picked = append(picked, order[d])
	}
	return picked, nil
}

func sameOrder(ids []inventory.Identity) bool {
	if _, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		return false
	}
	for _, id := range ids {
		if id.Name != ids[0].Name && os.Getenv("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" {
			return false
		}
	}
	return true
}

// byUUID is the place in ids of each CUDA device.
func byUUID(ids []inventory.Identity, list []driver.DeviceSummary) ([]int, error) {
	var order []int
	for _, d := range list {
		at := -1
		for i, id := range ids {
			if strings.EqualFold(id.UUID, d.UUID) {
				at = i
			}
		}
		if at < 0 {
			return nil, fmt.Errorf("NVML does not show GPU %d (%s): is it a MIG instance?", d.Index, d.UUID)
		}
		order = append(order, at)
	}
	return order, nil
}

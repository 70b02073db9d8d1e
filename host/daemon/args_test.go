package daemon

import (
	"slices"
	"strings"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon/config"
	"causeway/host/limit"
)

// TestArgumentsOfADevice: what a vGPU is to be and what the configuration permits reach its
// process, each by one option, and nothing that nobody set does.
func TestArgumentsOfADevice(t *testing.T) {
	args := func(set func(c *config.Config, r *record, o *Options)) []string {
		d := &Daemon{run: "/run/causeway"}
		d.opt.Scheduler = true
		r := record{Spec: api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Share: limit.DefaultShare}}}
		if set != nil {
			set(&d.cfg, &r, &d.opt)
		}
		return d.deviceArgs(&r, "GPU-1")
	}
	bare := args(nil)
	if got := strings.Join(bare, " "); got != "device --socket /run/causeway/vm1/gpu0.sock --control /run/causeway/vm1/gpu0.ctl --vm vm1 --name gpu0 --sessions 0 --warm 0 --gpu GPU-1 --sandbox  --ioctls " {
		t.Errorf("of a plain vGPU: %q", got)
	}
	for want, set := range map[string]func(c *config.Config, r *record, o *Options){
		"--memory 2GiB":       func(_ *config.Config, r *record, _ *Options) { r.Spec.Memory = 2 << 30 },
		"--host-memory 1GiB":  func(_ *config.Config, r *record, _ *Options) { r.Spec.HostMemory = 1 << 30 },
		"--user-sessions 3":   func(_ *config.Config, r *record, _ *Options) { r.Spec.UserSessions = 3 },
		"--share 300":         func(_ *config.Config, r *record, _ *Options) { r.Spec.Share = 300 },
		"--cap 25":            func(_ *config.Config, r *record, _ *Options) { r.Spec.Cap = 25 },
		"--swap":              func(_ *config.Config, r *record, _ *Options) { r.Swap = true },
		"--suspend-to /var/x": func(c *config.Config, _ *record, _ *Options) { c.Devices.SuspendTo = "/var/x" },
		"--migratable":        func(_ *config.Config, r *record, _ *Options) { r.Spec.Migratable = true },
		"--owner qemu":        func(_ *config.Config, r *record, _ *Options) { r.Spec.Owner = "qemu" },
		"--scheduler /run/causeway/scheduler.sock": func(c *config.Config, _ *record, _ *Options) { c.Scheduler.Enabled = true },
		"--kernels-reach-worker":                   func(c *config.Config, _ *record, _ *Options) { c.Isolation.KernelsReachWorker = true },
		"--linked-gpus":                            func(c *config.Config, _ *record, _ *Options) { c.Isolation.LinkedGPUs = true },
		"--verbose":                                func(c *config.Config, _ *record, _ *Options) { c.Devices.Verbose = true },
		"--lease /run/causeway/vm1/gpu0.lease --rdma auto --copy-connections 3": func(c *config.Config, r *record, _ *Options) {
			r.Spec.Lease, c.Remote.RDMA, c.Remote.CopyConnections, c.Remote.RDMAPairs = "id", "auto", 3, 1
		},
		"--lease /run/causeway/vm1/gpu0.lease --rdma auto --copy-connections 3 --rdma-queue-pairs 0": func(c *config.Config, r *record, _ *Options) {
			r.Spec.Lease, c.Remote.RDMA, c.Remote.CopyConnections, c.Remote.RDMAPairs = "id", "auto", 3, 0
		},
		"--lease /run/causeway/vm1/gpu0.lease --rdma off --copy-connections 4 --rdma-partition 0x8001": func(c *config.Config, r *record, _ *Options) {
			r.Spec.Lease, c.Remote.RDMA, c.Remote.CopyConnections, c.Remote.RDMAPairs, c.Remote.RDMAPartition = "id", "off", 4, 1, "0x8001"
		},
	} {
		got := args(set)
		words := strings.Split(want, " ")
		at := slices.Index(got, words[0])
		if at < 0 || len(got)-at < len(words) || !slices.Equal(got[at:at+len(words)], words) || !slices.Equal(slices.Delete(slices.Clone(got), at, at+len(words)), bare) {
			t.Errorf("%s: %q", want, got)
		}
	}
	// A server holds the share and the cap of what it lends, and the folder of a vGPU for programs
	// is its owner's.
	got := args(func(c *config.Config, r *record, _ *Options) {
		r.Spec.Remote, r.Spec.Share, r.Spec.Cap, r.Spec.Owner, r.Spec.Programs, c.Scheduler.Enabled = "gpu1", 300, 25, "qemu", true, true
	})
	for _, no := range []string{"--gpu", "--share", "--cap", "--owner", "--scheduler", "--guest-rdma"} {
		if slices.Contains(got, no) || !slices.Contains(got, "--relay") || !slices.Contains(got, "--programs") {
			t.Errorf("of a vGPU of a server, for programs: %q", got)
		}
	}
	if got := args(func(c *config.Config, r *record, _ *Options) { r.Spec.Lease, c.Remote.GPUDirect = "id", true }); !slices.Contains(got, "--gpu-direct") {
		t.Errorf("of a lease whose GPU memory adapters reach: %q", got)
	}
	if got := args(func(c *config.Config, _ *record, _ *Options) { c.Remote.RDMAPairs = 4 }); slices.Contains(got, "--rdma-queue-pairs") {
		t.Errorf("of a vGPU of this host: %q", got)
	}
	if got := args(func(c *config.Config, _ *record, _ *Options) { c.Remote.RDMAPartition = "0x8001" }); slices.Contains(got, "--rdma-partition") {
		t.Errorf("of a vGPU of this host: %q", got)
	}
	if got := args(func(c *config.Config, _ *record, _ *Options) { c.Remote.GPUDirect = true }); slices.Contains(got, "--gpu-direct") {
		t.Errorf("of a vGPU of this host: %q", got)
	}
	got = args(func(c *config.Config, r *record, _ *Options) { r.Spec.Remote, c.Remote.GuestRDMA = "gpu1", true })
	if !slices.Contains(got, "--guest-rdma") {
		t.Errorf("of a vGPU of a server whose programs may be RDMA ends: %q", got)
	}
	if got = args(func(c *config.Config, _ *record, _ *Options) { c.Remote.GuestRDMA = true }); slices.Contains(got, "--guest-rdma") {
		t.Errorf("of a vGPU of this host: %q", got)
	}
	got = args(func(c *config.Config, _ *record, o *Options) { c.Scheduler.Enabled, o.Scheduler = true, false })
	if slices.Contains(got, "--scheduler") {
		t.Errorf("without a scheduler: %q", got)
	}
}

// TestWishOverWhatWas: what a wish names is so, and all else stays as it was.
func TestWishOverWhatWas(t *testing.T) {
	d := &Daemon{}
	numa, yes := 3, true
	was := api.Spec{VM: "vm1", Name: "gpu0", GPU: "0", MIG: "1g", Remote: "gpu1", Owner: "qemu", Limits: api.Limits{Memory: 1 << 30, Share: 50, Cap: 10}, Profile: "half"}
	for name, c := range map[string]struct {
		wish api.Wish
		want func(s *api.Spec)
	}{
		"nothing":    {api.Wish{}, func(*api.Spec) {}},
		"GPU":        {api.Wish{GPU: "1"}, func(s *api.Spec) { s.GPU = "1" }},
		"MIG":        {api.Wish{MIG: "2g"}, func(s *api.Spec) { s.MIG = "2g" }},
		"server":     {api.Wish{Remote: "gpu2"}, func(s *api.Spec) { s.Remote = "gpu2" }},
		"any server": {api.Wish{Remote: api.RemoteAny}, func(*api.Spec) {}},
		"owner":      {api.Wish{Owner: "root"}, func(s *api.Spec) { s.Owner = "root" }},
		"node":       {api.Wish{NUMA: &numa}, func(s *api.Spec) { s.NUMA = &numa }},
		"migratable": {api.Wish{Migratable: &yes}, func(s *api.Spec) { s.Migratable = true }},
		"programs":   {api.Wish{Programs: &yes}, func(s *api.Spec) { s.Programs, s.Owner = true, "" }},
		"both":       {api.Wish{Programs: &yes, Owner: "me"}, func(s *api.Spec) { s.Programs, s.Owner = true, "me" }},
	} {
		want := was
		c.want(&want)
		if got := d.wanted(&c.wish, &was); got != want {
			t.Errorf("%s: %+v, not %+v", name, got, want)
		}
	}
}

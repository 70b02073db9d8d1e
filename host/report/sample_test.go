package report

import (
	"time"

	"causeway/host/api"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// sample is a node with two GPUs and three vGPUs, one of them lost.
func sample() *Reading {
	const h200, soft = "GPU-11111111-2222-3333-4444-555555555555", "GPU-83cbbca2-f377-0c91-36ff-7878a1642327"
	big := api.Spec{VM: "vm1", Name: "gpu0", GPU: "H200", Limits: api.Limits{Memory: 16 << 30, Share: 300, Cap: 75}, Owner: "libvirt-qemu"}
	small := api.Spec{VM: "build-2", Name: "gpu0", GPU: "soft", Limits: api.Limits{Memory: 512 << 20, Sessions: 8}}
	lost := api.Spec{VM: "vm9", Name: "gpu1", GPU: "any"}
	r := &Reading{
		Time:   noon,
		Daemon: &api.Version{Version: "1.0", PID: 99, Started: noon.Add(-48 * time.Hour)},
		GPUs: []api.GPU{
			{ID: soft, Backend: "soft", Name: "Causeway Software GPU", Memory: 8 << 30, Promised: 512 << 20, NUMA: -1, Driver: "580.0.0", VGPUs: []string{"build-2/gpu0"}},
			{ID: h200, Backend: "cuda", Name: "NVIDIA H200", Memory: 150 << 30, Used: 3 << 30, Promised: 16 << 30, Utilization: 62, Temperature: 54, PowerMW: 312400, Driver: "580.82",
				Drained: true, Why: "XID 79: the GPU has fallen off the bus", VGPUs: []string{"vm1/gpu0", "vm9/gpu1"}},
		},
		VGPUs: []api.VGPU{
			{Spec: big, State: api.Connected, GPU: h200, Socket: "/run/causeway/vm1/gpu0.sock", Control: "/run/causeway/vm1/gpu0.ctl", PID: 4711, Started: noon.Add(-200 * time.Minute),
				Status: &api.Status{Version: "1.0", PID: 4711, Started: noon.Add(-200 * time.Minute), Connected: true, GPU: "NVIDIA H200", UUID: h200, Limits: big.Limits,
					Memory: 2<<30 + 512<<20, Host: 640 << 20, Opened: 5, Refused: 1, Card: api.Card{Known: true, Nanos: 71e9, Charged: 4e9},
					Past: api.Counters{Calls: 1000, Launches: 500, BytesIn: 1 << 30, BytesOut: 1 << 20, BusyNanos: 5e9, MemoryPeak: 3 << 30, OutOfMemory: 2, HostRefused: 4, FailedCalls: 3},
					Sessions: []api.Session{
						{ID: 7, GuestPID: 1234, GuestUID: 1000, Program: "python3\x1b[2J", Worker: 5001, State: "running", Started: noon.Add(-90 * time.Second), Memory: 2 << 30, Host: 600 << 20,
							Counters: api.Counters{Calls: 1e6, Launches: 123456, BytesIn: 10 << 30, BytesOut: 5 << 30, BusyNanos: 60e9, WaitNanos: 7e9, WorkerNanos: 9e9, MemoryPeak: 2 << 30, ManagedIn: 256 << 20, ManagedOut: 768 << 20, Evicted: 6, Returned: 2}},
						{ID: 3, GuestPID: 800, Program: "nvidia-smi", Worker: 5000, State: "idle", Started: noon.Add(-10 * time.Minute), Memory: 512 << 20, ManagedAtGPU: 1 << 30, ManagedHere: 384 << 20},
					}}},
			{Spec: small, State: api.Waiting, GPU: soft, Socket: "/run/causeway/build-2/gpu0.sock", Control: "/run/causeway/build-2/gpu0.ctl", PID: 4712, Started: noon.Add(-30 * time.Second),
				Status: &api.Status{Version: "1.0", PID: 4712, Started: noon.Add(-30 * time.Second), GPU: "Causeway Software GPU", UUID: soft, Limits: small.Limits, Memory: 96 << 20}},
			{Spec: lost, State: api.Lost, GPU: h200, Socket: "/run/causeway/vm9/gpu1.sock", Why: "signal: killed", Started: noon.Add(-72 * time.Hour)},
		},
	}
	r.Sort()
	return r
}

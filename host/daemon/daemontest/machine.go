package daemontest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"causeway/host/api"
	"causeway/host/daemon"
)

// Machine is a host's GPUs. The zero value has none.
type Machine struct {
	mu   sync.Mutex
	r    daemon.Reading
	hang bool
}

// Hang has the driver not answer, from the next reading on.
func (m *Machine) Hang() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hang = true
}

// Soft is a host with the software GPU only.
func Soft(memory uint64) *Machine {
	m := &Machine{}
	m.r.GPUs = []api.GPU{{ID: "GPU-50f70000-0000-0000-0000-000000000000", Backend: "soft", Name: "Causeway Software GPU", Memory: memory, NUMA: -1}}
	return m
}

// Real is a host with n GPUs of a model.
func Real(n int, model string, memory uint64) *Machine {
	m := &Machine{}
	for i := range n {
		m.r.GPUs = append(m.r.GPUs, api.GPU{ID: UUID(i), Index: i, Backend: "cuda", Name: model, Memory: memory, NUMA: i % 2, Driver: "580.1"})
	}
	return m
}

// UUID is the i-th GPU's.
func UUID(i int) string { return fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i+1) }

// Change changes how the machine is.
func (m *Machine) Change(f func(r *daemon.Reading)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.r)
}

// Read implements daemon.Machine.
func (m *Machine) Read(ctx context.Context) (daemon.Reading, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hang {
		<-ctx.Done()
		return daemon.Reading{}, ctx.Err()
	}
	r := m.r
	r.GPUs = slices.Clone(r.GPUs)
	m.r.Faults = nil
	return r, nil
}

// Close implements daemon.Machine.
func (m *Machine) Close() {}

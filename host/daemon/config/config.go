package config

import (
	_ "embed"
	"os/user"
	"path/filepath"

	"causeway/host/api"
	"causeway/host/limit"
	"causeway/host/sandbox"
	"causeway/remote/mtls"
	"causeway/remote/resume"
)

//go:embed example.toml
var example []byte

// Example is the documented file. Loading it gives Default.
func Example() []byte { return append([]byte(nil), example...) }

// Config is everything an operator decides. example.toml says what each key means.
type Config struct {
	RunDir   string  `toml:"run_dir"`
	StateDir string  `toml:"state_dir"`
	LogDir   string  `toml:"log_dir"`
	Roles    Roles   `toml:"roles"`
	Devices  Devices `toml:"devices"`
	// Profiles are limits under names. A file that has any has these only.
	Profiles  map[string]limit.Profile `toml:"profiles"`
	Isolation Isolation                `toml:"isolation"`
	Placement Placement                `toml:"placement"`
	Health    Health                   `toml:"health"`
	Scheduler Scheduler                `toml:"scheduler"`
	Metrics   Metrics                  `toml:"metrics"`
	Migration Migration                `toml:"migration"`
	Remote    Remote                   `toml:"remote"`
}

// Roles lists who has which role: users by name or number, groups with an @ before.
type Roles struct {
	Admin    []string `toml:"admin"`
	Operator []string `toml:"operator"`
	Viewer   []string `toml:"viewer"`
}

// Devices says how device processes are started.
type Devices struct {
	SocketOwner  string             `toml:"socket_owner"`
	Memory       limit.Memory       `toml:"memory"`
	Share        limit.Share        `toml:"share"`
	Cap          limit.Cap          `toml:"cap"`
	Sessions     limit.Sessions     `toml:"sessions"`
	HostMemory   limit.HostMemory   `toml:"host_memory"`
	UserSessions limit.UserSessions `toml:"user_sessions"`
	// Migratable: sessions on real GPUs may move to other workers.
	Migratable bool `toml:"migratable"`
	// SuspendTo is the folder of files that hold suspended programs; empty: the host's memory does.
	SuspendTo    string            `toml:"suspend_to"`
	WarmWorkers  int               `toml:"warm_workers"`
	StartTimeout Duration          `toml:"start_timeout"`
	Log          string            `toml:"log"`
	LogSize      limit.Memory      `toml:"log_size"`
	Verbose      bool              `toml:"verbose"`
	Environment  map[string]string `toml:"environment"`
}

// Isolation says how device processes and their workers are confined. Zero: no limit.
type Isolation struct {
	Sandbox   string   `toml:"sandbox"`
	Memory    HostPart `toml:"memory"`
	CPU       uint32   `toml:"cpu"`
	Weight    uint32   `toml:"cpu_weight"`
	Processes uint32   `toml:"processes"`
	// Ioctls says when workers are held to the requests that their GPU's driver is known to make.
	Ioctls string `toml:"ioctls"`
	// KernelsReachWorker permits GPUs whose kernels can address all memory of a worker (HMM, ATS).
	KernelsReachWorker bool `toml:"kernels_reach_worker"`
	// LinkedGPUs gives workers of vGPUs that may move the nodes of all GPUs.
	LinkedGPUs bool `toml:"linked_gpus"`
}

// Placement says which GPU a vGPU gets.
type Placement struct {
	Overcommit  float64 `toml:"overcommit"`
	SoftwareGPU string  `toml:"software_gpu"`
	// SoftwareGPUs is how many the host has.
	SoftwareGPUs int `toml:"software_gpus"`
	// SoftwareMemory is the most that each offers; 0: what it has.
	SoftwareMemory limit.Memory `toml:"software_memory"`
}

// Health says when a GPU is drained.
type Health struct {
	Interval   Duration `toml:"interval"`
	Drain      bool     `toml:"drain"`
	IgnoreXIDs []uint64 `toml:"ignore_xids"`
}

// Scheduler says whether GPU time is shared by shares and caps.
type Scheduler struct {
	Enabled bool `toml:"enabled"`
}

// Metrics says where Prometheus may ask besides the API's socket.
type Metrics struct {
	Listen string `toml:"listen"`
}

// Migration says how hosts reach one another, to send GPU memory ahead of a VM.
type Migration struct {
	Listen      string   `toml:"listen"`
	CA          string   `toml:"ca"`
	Certificate string   `toml:"certificate"`
	Key         string   `toml:"key"`
	Peers       []string `toml:"peers"`
}

// Remote says which other hosts have vGPUs here, and where vGPUs of this host's VMs may be.
type Remote struct {
	Listen string   `toml:"listen"`
	Allow  []string `toml:"allow"`
	Fleet  []string `toml:"fleet"`
	// Unreserved is how much of each GPU's memory hosts may lease that no controller of Fleet has
	// reserved; 0: none.
	Unreserved limit.Memory `toml:"unreserved"`

	Servers []string `toml:"servers"`
	Domain  string   `toml:"domain"`
	RDMA    string   `toml:"rdma"`
	// RDMAPartition is InfiniBand's, by its P_Key; empty: the first of a port's table.
	RDMAPartition string `toml:"rdma_partition"`

	GuestRDMA bool `toml:"guest_rdma"`
	GPUDirect bool `toml:"gpu_direct"`

	CopyConnections int `toml:"copy_connections"`
	// RDMAPairs is how many queue pairs a program's copies by RDMA may have; 0: one for each port
	// of the adapters.
	RDMAPairs int `toml:"rdma_queue_pairs"`
}

// Files are the host's identity.
func (m *Migration) Files() mtls.Files {
	return mtls.Files{CA: m.CA, Certificate: m.Certificate, Key: m.Key}
}

// MeetsHosts says whether this host has to do with others, and so needs an identity.
func (c *Config) MeetsHosts() bool {
	return c.Migration.Listen != "" || len(c.Migration.Peers) > 0 || c.Remote.Listen != "" || len(c.Remote.Servers) > 0 || c.Remote.Domain != ""
}

// ServesOnly says whether this host gives GPUs to others, and neither VMs nor programs to them.
func (c *Config) ServesOnly() bool {
	here := *c
	here.Remote.Listen = ""
	return c.Remote.Listen != "" && !here.MeetsHosts()
}

// Values of Remote.RDMA besides a device's name.
const (
	RDMAOff  = "off"
	RDMAAuto = "auto"
)

// Values of Placement.SoftwareGPU.
const (
	SoftAuto  = "auto"  // for any when there is no real GPU, and by name
	SoftNamed = "named" // by name only
	SoftNever = "never"
)

// mostSoft is how many software GPUs there can be: host/driver/soft's addresses end there.
const mostSoft = 8

// Values of Devices.Log.
const (
	LogAuto    = "auto"
	LogFile    = "file"
	LogJournal = "journal"
)

// pki is where a host's identity lies.
const pki = "/etc/causeway/pki/"

// In has the host's identity in a folder, by the names that files have there.
func (m *Migration) In(dir string) {
	m.CA, m.Certificate, m.Key = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "host.pem"), filepath.Join(dir, "host-key.pem")
}

// Default is what holds where the file says nothing.
func Default() Config {
	return Config{
		RunDir: api.RunDir, StateDir: api.StateDir, LogDir: "/var/log/causeway",
		Roles: Roles{Admin: []string{}, Operator: []string{}, Viewer: []string{}},
		Devices: Devices{
			Share: limit.DefaultShare, Sessions: limit.DefaultSessions, HostMemory: limit.DefaultHostMemory, WarmWorkers: 1, StartTimeout: Duration(60e9), Log: LogAuto, LogSize: 8 << 20,
			Environment: map[string]string{},
		},
		Profiles:  limit.Profiles(),
		Isolation: Isolation{Sandbox: string(sandbox.On), Ioctls: string(sandbox.IoctlsAuto), Memory: HostPart{limit.Portion{Part: 3, Of: 4}}, Processes: 16384},
		Placement: Placement{Overcommit: 1, SoftwareGPU: SoftAuto, SoftwareGPUs: 1},
		Health:    Health{Interval: Duration(5e9), Drain: true, IgnoreXIDs: []uint64{13, 31, 43, 45, 63, 68, 69, 109}},
		Scheduler: Scheduler{Enabled: true},
		Migration: Migration{CA: pki + "ca.pem", Certificate: pki + "host.pem", Key: pki + "host-key.pem", Peers: []string{}},
		Remote:    Remote{Allow: []string{}, Fleet: []string{}, Servers: []string{}, RDMA: RDMAOff, CopyConnections: resume.DefaultBranches, RDMAPairs: 1},
	}
}

// Below puts all folders below one, for a causewayd beside the host's own.
func (c *Config) Below(dir string) {
	c.RunDir, c.StateDir, c.LogDir = dir, filepath.Join(dir, "state"), filepath.Join(dir, "log")
}

// Owner is who opens vhost-user sockets: the configured one, or else the user that this host's
// libvirt runs QEMU as. Empty: root.
func (d *Devices) Owner() string {
	if d.SocketOwner != "" {
		return d.SocketOwner
	}
	for _, name := range []string{"libvirt-qemu", "qemu"} { // Debian and Ubuntu; Fedora and its kin
		if _, err := user.Lookup(name); err != nil {
			continue
		}
		if _, err := user.LookupGroup("kvm"); err == nil {
			return name + ":kvm"
		}
		return name
	}
	return ""
}

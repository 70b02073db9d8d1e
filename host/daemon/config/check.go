package config

import (
	"errors"
	"fmt"
	"net"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"causeway/host/api"
	"causeway/host/limit"
	"causeway/host/sandbox"
	"causeway/host/sandbox/cgroup"
	"causeway/remote/resume"
	"causeway/remote/verbs"
)

// ErrValue says that a key's value cannot be used.
var ErrValue = errors.New("wrong value")

// maxRunDir leaves room for {vm}/{name}.sock in the 107 bytes of a socket's path.
const maxRunDir = 64

func wrong(key string, value any, remedy string) error {
	return fmt.Errorf("%w: %s = %v: %s", ErrValue, key, value, remedy)
}

// Check says everything that is wrong.
func (c *Config) Check() error {
	var errs []error
	bad := func(is bool, key string, value any, remedy string) {
		if is {
			errs = append(errs, wrong(key, value, remedy))
		}
	}
	for key, dir := range map[string]string{"run_dir": c.RunDir, "state_dir": c.StateDir, "log_dir": c.LogDir} {
		bad(!filepath.IsAbs(dir), key, strconv.Quote(dir), "write an absolute path")
	}
	bad(len(c.RunDir) > maxRunDir, "run_dir", c.RunDir, fmt.Sprintf("use a path of at most %d bytes: sockets' paths are short", maxRunDir))
	for key, list := range map[string][]string{"roles.admin": c.Roles.Admin, "roles.operator": c.Roles.Operator, "roles.viewer": c.Roles.Viewer} {
		for _, who := range list {
			if _, _, err := Lookup(who); err != nil {
				errs = append(errs, wrong(key, strconv.Quote(who), err.Error()))
			}
		}
	}
	d := &c.Devices
	if err := CheckOwner(d.SocketOwner); err != nil {
		errs = append(errs, wrong("devices.socket_owner", strconv.Quote(d.SocketOwner), err.Error()))
	}
	for key, err := range map[string]error{
		"devices.memory": d.Memory.Check(), "devices.share": d.Share.Check(), "devices.cap": d.Cap.Check(), "devices.sessions": d.Sessions.Check(),
		"devices.host_memory": d.HostMemory.Check(), "devices.user_sessions": d.UserSessions.Check(),
	} {
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: %s: %w", ErrValue, key, err))
		}
	}
	for name, p := range c.Profiles {
		if err := errors.Join(p.Check(), (&api.Change{Profile: name}).Check()); err != nil {
			errs = append(errs, wrong("profiles", strconv.Quote(name), err.Error()))
		}
	}
	bad(d.SuspendTo != "" && !filepath.IsAbs(d.SuspendTo), "devices.suspend_to", strconv.Quote(d.SuspendTo), "write an absolute path, or nothing")
	bad(d.WarmWorkers < 0 || d.WarmWorkers > 64, "devices.warm_workers", d.WarmWorkers, "use 0 to 64")
	bad(d.StartTimeout.Of() < time.Second || d.StartTimeout.Of() > 10*time.Minute, "devices.start_timeout", d.StartTimeout.Of(), "use 1s to 10m")
	bad(d.Log != LogAuto && d.Log != LogFile && d.Log != LogJournal, "devices.log", strconv.Quote(d.Log), `use "auto", "file" or "journal"`)
	bad(d.LogSize == 0, "devices.log_size", d.LogSize, `use "1MiB" or more`)
	for k := range d.Environment {
		bad(k == "" || strings.ContainsAny(k, "=\x00"), "devices.environment", strconv.Quote(k), "a variable's name has no =")
	}
	if _, err := sandbox.ParseMode(c.Isolation.Sandbox); err != nil {
		errs = append(errs, wrong("isolation.sandbox", strconv.Quote(c.Isolation.Sandbox), "use \"on\", \"strict\", \"audit\" or \"off\""))
	}
	if _, err := sandbox.ParseIoctls(c.Isolation.Ioctls); err != nil {
		errs = append(errs, wrong("isolation.ioctls", strconv.Quote(c.Isolation.Ioctls), "use \"auto\", \"enforce\", \"audit\" or \"pass\""))
	}
	if err := c.Isolation.Limits().Check(); err != nil {
		errs = append(errs, wrong("isolation", fmt.Sprintf("%+v", c.Isolation), err.Error()))
	}
	p := &c.Placement
	bad(!(p.Overcommit >= 1 && p.Overcommit <= 100), "placement.overcommit", p.Overcommit, "use 1.0 (promise what there is) to 100")
	bad(p.SoftwareGPU != SoftAuto && p.SoftwareGPU != SoftNamed && p.SoftwareGPU != SoftNever, "placement.software_gpu", strconv.Quote(p.SoftwareGPU), `use "auto", "named" or "never"`)
	bad(p.SoftwareMemory != 0 && p.SoftwareMemory < 1<<20, "placement.software_memory", p.SoftwareMemory, `use "1MiB" or more, or none`)
	bad(p.SoftwareGPUs < 1 || p.SoftwareGPUs > mostSoft, "placement.software_gpus", p.SoftwareGPUs, fmt.Sprintf("use 1 to %d", mostSoft))
	bad(c.Health.Interval.Of() < time.Second || c.Health.Interval.Of() > time.Hour, "health.interval", c.Health.Interval.Of(), "use 1s to 1h")
	for key, l := range map[string][2]string{"metrics.listen": {c.Metrics.Listen, "127.0.0.1:9435"}, "migration.listen": {c.Migration.Listen, ":7744"}, "remote.listen": {c.Remote.Listen, ":7745"}} {
		_, port, err := net.SplitHostPort(l[0])
		n, notPort := strconv.ParseUint(port, 10, 16)
		bad(l[0] != "" && (err != nil || notPort != nil || n == 0), key, strconv.Quote(l[0]), fmt.Sprintf("write ADDRESS:PORT as in %q, or nothing", l[1]))
	}
	for _, name := range c.Remote.Allow {
		bad(!api.IsName(name), "remote.allow", strconv.Quote(name), "write the names in the hosts' certificates")
	}
	for _, name := range c.Remote.Fleet {
		bad(!api.IsName(name), "remote.fleet", strconv.Quote(name), "write the names in the certificates of fleets' controllers")
	}
	if err := c.Remote.Unreserved.Check(); err != nil {
		errs = append(errs, fmt.Errorf("%w: remote.unreserved: %w", ErrValue, err))
	}
	bad(c.Remote.Unreserved != 0 && len(c.Remote.Fleet) == 0, "remote.unreserved", c.Remote.Unreserved, "without remote.fleet hosts lease what there is: leave it out")
	for i, name := range c.Remote.Servers {
		again := slices.ContainsFunc(c.Remote.Servers[:i], func(n string) bool { return api.ServerAddress(n) == api.ServerAddress(name) })
		bad(again, "remote.servers", strconv.Quote(name), "it is listed twice")
		bad(name == api.RemoteAny || api.CheckServer(name) != nil, "remote.servers", strconv.Quote(name), `write NAME or HOST:PORT, as in "gpu1" or "gpu1.example.net:7745"`)
	}
	bad(c.Remote.Domain != "" && (!api.IsName(c.Remote.Domain) || strings.HasPrefix(c.Remote.Domain, "_")), "remote.domain", strconv.Quote(c.Remote.Domain),
		`write a domain, as in "example.net", without _causeway._tcp, or nothing`)
	bad(!rdma.MatchString(c.Remote.RDMA) || slices.Contains([]string{"on", "yes", "true"}, c.Remote.RDMA), "remote.rdma", strconv.Quote(c.Remote.RDMA), `use "off", "auto", or an RDMA device or one port of it, as in "mlx5_0" or "mlx5_0/1"`)
	if _, err := verbs.ParsePartition(c.Remote.RDMAPartition); err != nil {
		errs = append(errs, wrong("remote.rdma_partition", strconv.Quote(c.Remote.RDMAPartition), `write the partition's P_Key, as in "0x8001", or nothing`))
	}
	bad(c.Remote.CopyConnections < 0 || c.Remote.CopyConnections > resume.MostBranches, "remote.copy_connections", c.Remote.CopyConnections, fmt.Sprintf("use 0 to %d", resume.MostBranches))
	bad(c.Remote.RDMAPairs < 0 || c.Remote.RDMAPairs > verbs.MostPairs, "remote.rdma_queue_pairs", c.Remote.RDMAPairs, fmt.Sprintf("use 1 to %d, or 0 for one of each port", verbs.MostPairs))
	return errors.Join(errs...)
}

// rdma is what Remote.RDMA may be.
var rdma = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(/[0-9]{1,3})?$`)

// Limits are those of a vGPU's control group. Before memory is refused, and a worker ends, the
// group is slowed down for the last sixteenth of it.
func (i *Isolation) Limits() cgroup.Limits {
	memory := i.Memory.Of(limit.OfHost())
	return cgroup.Limits{CPUWeight: i.Weight, CPU: i.CPU, Memory: memory, High: memory - memory/16, Processes: i.Processes}
}

// Lookup finds the number of a user, or of a group with an @ before its name.
func Lookup(who string) (id uint32, group bool, err error) {
	name, group := strings.CutPrefix(who, "@")
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n), group, nil
	}
	var number string
	if group {
		g, err := user.LookupGroup(name)
		if err != nil {
			return 0, true, fmt.Errorf("the host has no group %q: create it with `groupadd %[1]s`, or write another", name)
		}
		number = g.Gid
	} else {
		u, err := user.Lookup(name)
		if err != nil {
			return 0, false, fmt.Errorf("the host has no user %q: write another, or @NAME for a group", name)
		}
		number = u.Uid
	}
	n, err := strconv.ParseUint(number, 10, 32)
	return uint32(n), group, err
}

// CheckOwner checks USER or USER:GROUP; empty is none.
func CheckOwner(s string) error {
	if s == "" {
		return nil
	}
	u, g, both := strings.Cut(s, ":")
	if strings.HasPrefix(u, "@") || u == "" {
		return errors.New("write USER or USER:GROUP")
	}
	if _, _, err := Lookup(u); err != nil {
		return err
	}
	if both {
		_, _, err := Lookup("@" + g)
		return err
	}
	return nil
}

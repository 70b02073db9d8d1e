package main

import (
	"errors"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/daemon/config"
	"causeway/host/doctor"
)

func doctorCommand() *cobra.Command {
	var node nodeFlags
	var file string
	var brief bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this host can give vGPUs to VMs, and say what to do",
		Long: `Checks the kernel, KVM, QEMU, libvirt and its hook, AppArmor and SELinux, the NVIDIA driver and its libraries (loaded by a child
process), MIG, what kernels on the GPU can address, huge pages, limits of locked memory, what confines workers (control groups, seccomp, Landlock, namespaces), and
causewayd: its configuration, folders, disk space, sockets, ports, the scheduler, the certificate by which other hosts know this one, GPU servers and the vGPUs.

A GPU server that has no VMs of its own (remote.listen alone in its configuration, and no libvirtd) needs nothing of what they need, and is told so.

Each check says ok, warning (something works less well) or failed (vGPUs will not work), and what to do. It changes nothing.
The exit status is 1 if a check failed.`,
		Example: "  causeway doctor\n  causeway doctor --brief            # what is not ok\n  causeway doctor --json | jq -r '.[] | select(.state != \"ok\").do'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m := doctor.Real()
			m.Version, m.RunDir = version, node.run
			cfg, err := config.Load(file)
			m.Config = func() error { return err }
			if err != nil {
				cfg = config.Default()
			}
			if !cmd.Flags().Changed("run-dir") && node.run == api.RunDir {
				m.RunDir = cfg.RunDir
			}
			m.StateDir, m.LogDir, m.ReachWorker = cfg.StateDir, cfg.LogDir, cfg.Isolation.KernelsReachWorker
			if cfg.MeetsHosts() {
				m.Identity = cfg.Migration.Files()
			}
			m.Serves = cfg.ServesOnly()
			m.Daemon = api.NewDaemonClient(m.RunDir)
			defer m.Daemon.Close()
			results := doctor.Examine(cmd.Context(), m)
			if node.json {
				err = printJSON(cmd.OutOrStdout(), results)
			} else {
				err = doctor.Write(cmd.OutOrStdout(), results, !brief)
			}
			if err == nil && doctor.Worst(results) == doctor.Failed {
				return errChecksFailed
			}
			return err
		},
	}
	node.register(c)
	c.Flags().StringVar(&file, "config", api.ConfigFile, "causewayd's configuration")
	c.Flags().BoolVarP(&brief, "brief", "b", false, "show only what is not ok")
	return c
}

// errChecksFailed sets the exit status of doctor.
var errChecksFailed = errors.New("a check failed")

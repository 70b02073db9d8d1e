package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"causeway/host/libvirt"
	"causeway/host/vf"
)

// settingFlags are the flags that say how a function is to be.
type settingFlags struct {
	mac, state, node, port string
	trust, spoof           string
	vlan, qos              int
	minRate, maxRate       uint32
	partitions             []int
}

func (f *settingFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.mac, "mac", "", "MAC `ADDRESS`, which the guest cannot change then; Ethernet")
	c.Flags().IntVar(&f.vlan, "vlan", 0, "VLAN that its frames get and lose, 0: none; Ethernet")
	c.Flags().IntVar(&f.qos, "qos", 0, "priority of the VLAN's frames, 0 to 7")
	c.Flags().Uint32Var(&f.minRate, "min-rate", 0, "Mbit/s that it is promised, 0: none")
	c.Flags().Uint32Var(&f.maxRate, "max-rate", 0, "Mbit/s that it may send, 0: as the link")
	c.Flags().StringVar(&f.trust, "trust", "", "`on|off`: whether the guest may take other addresses and see all frames")
	c.Flags().StringVar(&f.spoof, "spoof-check", "", "`on|off`: whether frames with other addresses of the sender are dropped")
	c.Flags().StringVar(&f.state, "state", "", "its link: `auto|enable|disable`; auto is as the physical port's")
	c.Flags().StringVar(&f.node, "node-guid", "", "`GUID` of its InfiniBand node")
	c.Flags().StringVar(&f.port, "port-guid", "", "`GUID` of its InfiniBand port, by which a subnet manager gives it partitions")
	c.Flags().IntSliceVar(&f.partitions, "partitions", nil, "`PLACES` in the physical port's table of partition keys that its own shows (mlx4 only)")
	onOff := cobra.FixedCompletions([]string{"on", "off"}, cobra.ShellCompDirectiveNoFileComp)
	_ = c.RegisterFlagCompletionFunc("trust", onOff)
	_ = c.RegisterFlagCompletionFunc("spoof-check", onOff)
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"auto", "enable", "disable"}, cobra.ShellCompDirectiveNoFileComp))
}

// settings are what the flags say; one that was not given changes nothing.
func (f *settingFlags) settings(c *cobra.Command) (s vf.Settings, err error) {
	given := c.Flags().Changed
	if given("vlan") {
		s.VLAN = &f.vlan
	}
	if given("qos") {
		s.QoS = &f.qos
	}
	if given("min-rate") {
		s.MinRate = &f.minRate
	}
	if given("max-rate") {
		s.MaxRate = &f.maxRate
	}
	if given("partitions") {
		s.Partitions = f.partitions
	}
	for _, one := range []struct {
		flag string
		read func() error
	}{
		{"mac", func() (err error) { s.MAC, err = vf.ParseMAC(f.mac); return err }},
		{"state", func() (err error) { s.State, err = vf.ParseLinkState(f.state); return err }},
		{"node-guid", func() (err error) { s.NodeGUID, err = vf.ParseGUID(f.node); return err }},
		{"port-guid", func() (err error) { s.PortGUID, err = vf.ParseGUID(f.port); return err }},
		{"trust", func() (err error) { s.Trust, err = onOff(f.trust); return err }},
		{"spoof-check", func() (err error) { s.SpoofCheck, err = onOff(f.spoof); return err }},
	} {
		if !given(one.flag) {
			continue
		}
		if err := one.read(); err != nil {
			return s, fmt.Errorf("--%s: %w", one.flag, err)
		}
	}
	return s, s.Check()
}

func onOff(s string) (*bool, error) {
	on := s == "on"
	if !on && s != "off" {
		return nil, fmt.Errorf("%w: %s: on or off", vf.ErrValue, strconv.Quote(s))
	}
	return &on, nil
}

// vmFlags say how libvirt is reached, and where a VM is changed.
type vmFlags struct {
	connect      string
	live, config bool
	timeout      time.Duration
}

func (f *vmFlags) register(c *cobra.Command) {
	c.Flags().StringVarP(&f.connect, "connect", "c", "", "libvirt's address (default: libvirt's own, for root qemu:///system)")
	c.Flags().DurationVar(&f.timeout, "timeout", 30*time.Second, "how long the guest may take to let go of a function")
}

// open opens a domain.
func (f *vmFlags) open(ctx context.Context, domain string) (libvirt.Domain, error) {
	return functionHostOf(ctx).domain(ctx, f.connect, domain)
}

func pci(a vf.Address) libvirt.PCI { return libvirt.PCI(a.Numbers()) }

func vfAssignCommand() *cobra.Command {
	var node nodeFlags
	var set settingFlags
	var vm vmFlags
	var domain, to string
	var printXML bool
	c := &cobra.Command{
		Use:   "assign FUNCTION|NIC",
		Short: "Set a virtual function up and pass it through to a VM, or give it to this host's relays",
		Long: `Sets a virtual function up, and gives it away: --vm passes it through to a VM by libvirt, into the running VM and its definition (--live, --config: only one
of them); with --print-xml it prints the <hostdev> for whoever writes the VM's definition. --to relay has the host's own driver take it, for remote vGPUs of this host.
A NIC in place of a function takes its first that is free.

What is not said of a function stays as it is. The driver must take each setting and show it afterwards; if it does not, or if the VM cannot have it,
everything is put back. When it is released it is as it was before: but for GUIDs, which most drivers do not show.

Partition keys of InfiniBand: kernels have no setting for them. ConnectX-4 and later get them from the subnet manager, by the function's --port-guid, which
OpenSM's partitions.conf names; only mlx4 lets the host map them (--partitions).`,
		Example: `  causeway vf assign enp65s0f0np0 --vm vm1 --mac 02:00:00:00:00:01 --vlan 100 --max-rate 25000
  causeway vf assign enp65s0f0np0/1 --vm vm1 --trust off --spoof-check on --state auto --config
  causeway vf assign mlx5_2/0 --vm vm1 --node-guid 00:11:22:33:44:55:66:77 --port-guid 00:11:22:33:44:55:66:78
  causeway vf assign 0000:41:00.3 --vm vm1 --print-xml
  causeway vf assign mlx5_0/3 --to relay`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: node.completeFunction(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := set.settings(cmd)
			if err != nil {
				return err
			}
			w := vf.Wish{Function: args[0], Settings: s, Use: vf.ForVM, VM: domain}
			if domain == "" {
				if to != string(vf.ForRelay) {
					return fmt.Errorf("%w: --to %s: relay, or --vm VM", vf.ErrValue, strconv.Quote(to))
				}
				w.Use = vf.ForRelay
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, vfLimit)
			defer cancel()
			m := node.functions(cmd)
			if w.Use == vf.ForRelay || printXML {
				return printAssigned(cmd, &node, printXML)(m.Assign(ctx, w, nil))
			}
			return vm.assign(ctx, m, w, printAssigned(cmd, &node, false))
		},
	}
	node.register(c)
	set.register(c)
	vm.register(c)
	c.Flags().BoolVar(&vm.live, "live", false, "change the running VM only")
	c.Flags().BoolVar(&vm.config, "config", false, "change what the next start has only")
	c.Flags().StringVar(&domain, "vm", "", "libvirt `DOMAIN` that is to have it")
	c.Flags().StringVar(&to, "to", "", "`relay`: this host's relays are to have it")
	c.Flags().BoolVar(&printXML, "print-xml", false, "print the XML for the VM, and leave libvirt alone")
	c.MarkFlagsOneRequired("vm", "to")
	c.MarkFlagsMutuallyExclusive("vm", "to")
	c.MarkFlagsMutuallyExclusive("to", "print-xml")
	c.MarkFlagsMutuallyExclusive("live", "print-xml")
	c.MarkFlagsMutuallyExclusive("config", "print-xml")
	_ = c.RegisterFlagCompletionFunc("vm", node.completeVM)
	_ = c.RegisterFlagCompletionFunc("to", cobra.FixedCompletions([]string{"relay"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// assign gives a function to a domain of libvirt's.
func (f *vmFlags) assign(ctx context.Context, m *vf.Manager, w vf.Wish, say func(*vf.VF, error) error) error {
	d, err := f.open(ctx, w.VM)
	if err != nil {
		return err
	}
	defer d.Close()
	p := &libvirt.Passer{Domain: d, Timeout: f.timeout}
	flags := domainFlags{live: f.live, config: f.config}
	where, err := p.Where(flags.where())
	if err != nil {
		return err
	}
	w.VM, w.Live, w.Config = d.Name(), where&libvirt.Live != 0, where&libvirt.Config != 0
	return say(m.Assign(ctx, w, func(_ context.Context, v *vf.VF) error { return p.Give(pci(v.Address), where) }))
}

// printAssigned says who has a function now, and what to do with it.
func printAssigned(cmd *cobra.Command, node *nodeFlags, xml bool) func(*vf.VF, error) error {
	return func(v *vf.VF, err error) error {
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		text, err := libvirt.HostdevXML(pci(v.Address))
		switch {
		case err != nil:
			return err
		case node.json:
			return printJSON(out, v)
		case xml:
			fmt.Fprintf(cmd.ErrOrStderr(), "note: %s is kept for VM %s; `causeway vf release %s` frees it\n", v.Address, v.Record.VM, v.Address)
			_, err = fmt.Fprintln(out, text)
		case v.Record.Use == vf.ForRelay:
			_, err = fmt.Fprintf(out, "%s is this host's own: network interfaces %v, RDMA devices %v. Give it an address, and servers are reached over it\n", v.Address, v.Links, v.RDMA)
		default:
			_, err = fmt.Fprintf(out, "%s is passed through to VM %s (%s)\n", v.Address, v.Record.VM, v.State)
		}
		return err
	}
}

func vfReleaseCommand() *cobra.Command {
	var node nodeFlags
	var vm vmFlags
	var ended bool
	c := &cobra.Command{
		Use:   "release FUNCTION|VM",
		Short: "Take virtual functions back",
		Long: `Takes a function back, or all that a VM has: libvirt takes it out of the VM, where the guest has to let go, and out of its definition; its settings are put
back to what they were before it was given. --ended takes back what VMs had that have ended, and what was being given when that was interrupted.`,
		Example:           "  causeway vf release enp65s0f0np0/1\n  causeway vf release vm1\n  causeway vf release --ended",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: node.completeFunction(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			if ended == (len(args) == 1) {
				return fmt.Errorf("say a function, a VM or --ended: `%s --help` has examples", cmd.CommandPath())
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			m := node.functions(cmd)
			var done []vf.Released
			var err error
			if ended {
				done, err = m.ReleaseEnded(ctx, "")
			} else {
				done, err = m.Release(ctx, args[0], vm.take)
			}
			return errors.Join(printReleased(cmd, &node, done, err == nil), err)
		},
	}
	node.register(c)
	vm.register(c)
	c.Flags().BoolVar(&ended, "ended", false, "those of VMs that have ended")
	return c
}

// take takes a function out of its domain. One that is no more has let go of everything.
func (f *vmFlags) take(ctx context.Context, a *vf.Assignment) error {
	d, err := f.open(ctx, a.VM)
	if errors.Is(err, libvirt.ErrNoDomain) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	p := &libvirt.Passer{Domain: d, Timeout: f.timeout}
	return p.Take(ctx, pci(a.Address))
}

// printReleased says what came back.
func printReleased(cmd *cobra.Command, node *nodeFlags, done []vf.Released, all bool) error {
	out := cmd.OutOrStdout()
	if node.json {
		return printJSON(out, append([]vf.Released{}, done...))
	}
	for _, r := range done {
		how := "as it was before"
		if r.Gone {
			how = "which is no more"
		}
		if _, err := fmt.Fprintf(out, "%s is free, %s\n", r.Address, how); err != nil {
			return err
		}
	}
	if all && len(done) == 0 {
		_, err := fmt.Fprintln(out, "nothing is left of VMs that have ended")
		return err
	}
	return nil
}

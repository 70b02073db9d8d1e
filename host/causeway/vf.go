package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"causeway/host/libvirt"
	"causeway/host/vf"
)

func vfCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "vf",
		Short: "Make virtual functions of NICs, and give them to VMs or to this host's relays",
		Long: `A NIC with SR-IOV (a ConnectX, say) shows itself as several: its physical function, and virtual functions that VMs can have for their own, with RDMA. These
commands make them, set them up, pass them through to VMs by libvirt, and take them back.

A function is called by its NIC and number, as in enp65s0f0np0/2 or mlx5_0/2, or by its PCI address. A NIC is called by its network interface, its RDMA
device or its address.

Who has which function is kept in RUN/vfs.json until the host reboots, as the functions themselves are: causewayd may restart and VMs may be killed. What a VM
had that has ended is taken back when libvirt's hook says so, when causewayd starts, and by "causeway vf release --ended".`,
		Example: `  causeway vf create enp65s0f0np0 --functions 4
  causeway vf assign enp65s0f0np0 --vm vm1 --mac 02:00:00:00:00:01 --vlan 100 --spoof-check on
  causeway vf assign mlx5_0/2 --vm vm1 --port-guid 00:11:22:33:44:55:66:77
  causeway vf assign mlx5_0/3 --to relay
  causeway vf list
  causeway vf release vm1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(vfListCommand(), vfCreateCommand(), vfAssignCommand(), vfReleaseCommand())
	return c
}

// functionHost is whose functions and VMs the commands are about.
type functionHost struct {
	vf.Options
	domain func(ctx context.Context, connect, domain string) (libvirt.Domain, error)
}

// functionHostKey is the key of a context that has another host than this: tests'.
type functionHostKey struct{}

func functionHostOf(ctx context.Context) functionHost {
	if h, ok := ctx.Value(functionHostKey{}).(functionHost); ok {
		return h
	}
	return functionHost{domain: openDomain}
}

// openDomain opens a domain of libvirt's. A program without libvirt becomes the one that has it.
func openDomain(ctx context.Context, connect, domain string) (libvirt.Domain, error) {
	d, err := libvirt.Open(ctx, connect, domain)
	if errors.Is(err, libvirt.ErrNoLibvirt) {
		err = becomeLibvirt()
	}
	return d, err
}

// functions is the host's Manager.
func (f *nodeFlags) functions(cmd *cobra.Command) *vf.Manager {
	o := functionHostOf(cmd.Context()).Options
	o.Run = f.run
	return vf.New(o)
}

func vfListCommand() *cobra.Command {
	var node nodeFlags
	c := &cobra.Command{
		Use:   "list [NIC]",
		Short: "List NICs that can have virtual functions, these, and who has them",
		Long: `Lists the NICs of this host that can have virtual functions, how many they have and can have, and each function: its address, who has it, and how it is set.
Rates are in Mbit/s, min/max; 0 is none promised, or no limit. USED says:

  free         nobody has it
  in use       a VM has it open
  reserved     a VM that does not run has it in its definition, or it was given by hand (--print-xml)
  relay        this host's relays use it
  ended        its VM has ended: "causeway vf release --ended" frees it
  unfinished   it is being given or taken back; if that lasts, who did so has died: release it
  taken        some process has it open that did not get it from causeway`,
		Example:           "  causeway vf list\n  causeway vf list enp65s0f0np0 --json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: node.completeNIC,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 1 {
				name = args[0]
			}
			list, err := node.functions(cmd).Some(name)
			if err != nil {
				return err
			}
			if node.json {
				return printJSON(cmd.OutOrStdout(), append([]vf.PF{}, list...))
			}
			return printFunctions(cmd.OutOrStdout(), list)
		},
	}
	node.register(c)
	return c
}

// or is what stands for nothing in a table.
func or(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func printFunctions(out io.Writer, list []vf.PF) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "no NIC of this host can have virtual functions (none has sriov_totalvfs in sysfs: card, firmware and BIOS must allow SR-IOV)")
		return err
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NIC\tADDRESS\tDRIVER\tRDMA\tNUMA\tFUNCTIONS")
	some := false
	for i := range list {
		p := &list[i]
		some = some || len(p.Functions) > 0
		numa := "-"
		if p.NUMA >= 0 {
			numa = strconv.Itoa(p.NUMA)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d of %d\n", p.Name, p.Address, or(p.Driver), or(strings.Join(p.RDMA, " ")), numa, len(p.Functions), p.Total)
	}
	if some {
		fmt.Fprintln(t, "\nFUNCTION\tADDRESS\tUSED\tDRIVER\tDEVICES\tMAC OR GUID\tVLAN\tRATE\tTRUST\tSPOOF CHECK\tSTATE")
	}
	for i := range list {
		for j := range list[i].Functions {
			printFunction(t, &list[i], &list[i].Functions[j])
		}
	}
	return t.Flush()
}

func printFunction(t io.Writer, p *vf.PF, v *vf.VF) {
	id, vlan, rate, trust, spoof, state := "-", "-", "-", "-", "-", "-"
	if a := v.Attributes; a != nil {
		onOff := map[bool]string{true: "on", false: "off"}
		trust, spoof, state = onOff[a.Trust], onOff[a.SpoofCheck], or(string(a.State))
		rate = fmt.Sprintf("%d/%d", a.MinRate, a.MaxRate)
		if a.VLAN != 0 {
			vlan = strconv.Itoa(a.VLAN)
		}
		if id = or(string(a.MAC)); a.PortGUID != 0 {
			id = a.PortGUID.String()
		}
	}
	devices := strings.Join(append(append([]string{}, v.Links...), v.RDMA...), " ")
	fmt.Fprintf(t, "%s/%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
		p.Name, v.Index, v.Address, v.Whose(), or(v.Driver), or(devices), id, vlan, rate, trust, spoof, state)
}

func vfCreateCommand() *cobra.Command {
	var node nodeFlags
	var count int
	var driver bool
	c := &cobra.Command{
		Use:   "create NIC --functions N",
		Short: "Have a NIC make N virtual functions",
		Long: `Has a NIC make N virtual functions; 0 ends all that it has. The kernel changes their number only by making all of them anew, so none may be used. They
last until the host reboots: run this at each boot (a systemd unit, or udev). How many a card can have its firmware says:
mlxconfig -d ADDRESS set SRIOV_EN=1 NUM_OF_VFS=16, and a reboot.

With --driver=false the host's driver leaves them alone, which saves the time of binding it to functions that VMs are to have.`,
		Example: `  causeway vf create enp65s0f0np0 --functions 4
  causeway vf create 0000:41:00.0 --functions 16 --driver=false
  causeway vf create mlx5_0 --functions 0`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: node.completeNIC,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), vfLimit)
			defer cancel()
			pf, err := node.functions(cmd).Create(ctx, args[0], count, driver)
			if err != nil {
				return err
			}
			if node.json {
				return printJSON(cmd.OutOrStdout(), pf)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s has %d virtual functions, of %d that it can have\n", pf.Name, len(pf.Functions), pf.Total)
			return err
		},
	}
	node.register(c)
	c.Flags().IntVarP(&count, "functions", "n", 0, "how many")
	c.Flags().BoolVar(&driver, "driver", true, "the host's driver takes them")
	_ = c.MarkFlagRequired("functions")
	return c
}

// vfLimit bounds how long another causeway may change functions meanwhile.
const vfLimit = time.Minute

// completeNIC offers NICs, for shells.
func (f *nodeFlags) completeNIC(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	list, err := f.functions(cmd).List()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for i := range list {
		names = append(names, cobra.CompletionWithDesc(list[i].Name, fmt.Sprintf("%d of %d functions", len(list[i].Functions), list[i].Total)))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeFunction offers functions of a kind, for shells.
func (f *nodeFlags) completeFunction(free bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		list, err := f.functions(cmd).List()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for i := range list {
			for j := range list[i].Functions {
				v := &list[i].Functions[j]
				if (v.State == vf.Free) == free && v.State != vf.Taken {
					names = append(names, cobra.CompletionWithDesc(fmt.Sprintf("%s/%d", list[i].Name, v.Index), v.Whose()))
				}
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// freeEnded takes back the functions of VMs that have ended: one VM's, or all.
func freeEnded(ctx context.Context, run, vm string, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	done, err := vf.New(vf.Options{Run: run}).ReleaseEnded(ctx, vm)
	for _, r := range done {
		log.Info("virtual function taken back: its VM has ended", "vm", r.VM, "address", r.Address)
	}
	if err != nil {
		log.Warn("virtual functions of VMs that have ended: `causeway vf list` shows them", "error", err)
	}
}

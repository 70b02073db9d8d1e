package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/libvirt"
	"causeway/host/qmp"
	"causeway/host/report"
)

// domainFlags are common to attach and detach.
type domainFlags struct {
	node         nodeFlags
	connect      string
	qmp          string
	served       string // VM/NAME of a vGPU that causewayd has under another name than the domain's
	live, config bool
	timeout      time.Duration
}

func (f *domainFlags) register(c *cobra.Command) {
	f.node.register(c)
	c.Flags().StringVarP(&f.connect, "connect", "c", "", "libvirt's `URI` (default: libvirt's own, for root qemu:///system)")
	c.Flags().StringVar(&f.qmp, "qmp", "", "QMP `SOCKET` of a QEMU that runs without libvirt; DOMAIN is then any name for the VM")
	c.Flags().BoolVar(&f.live, "live", false, "change the running VM only")
	c.Flags().BoolVar(&f.config, "config", false, "change what the next start has only")
	c.Flags().DurationVar(&f.timeout, "timeout", 30*time.Second, "how long the guest may take to let go of a vGPU")
	c.Flags().StringVar(&f.served, "served", "", "a vGPU that causewayd has already, as `VM/NAME`: only its device is plugged in or out, and who made it ends it")
	c.MarkFlagsMutuallyExclusive("qmp", "served")
	c.MarkFlagsMutuallyExclusive("qmp", "connect")
	c.MarkFlagsMutuallyExclusive("qmp", "live")
	c.MarkFlagsMutuallyExclusive("qmp", "config")
}

// where is 0 for wherever the domain is.
func (f *domainFlags) where() (w libvirt.Where) {
	if f.live {
		w |= libvirt.Live
	}
	if f.config {
		w |= libvirt.Config
	}
	return w
}

// hookFolders are where libvirt looks for hooks.
const hookFolders = "/etc/libvirt/hooks"

// with calls fn with an Attacher of the domain.
func (f *domainFlags) with(cmd *cobra.Command, domain string, fn func(context.Context, *libvirt.Attacher) (*libvirt.Result, error)) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	d, err := libvirt.Open(ctx, f.connect, domain)
	if errors.Is(err, libvirt.ErrNoLibvirt) {
		err = becomeLibvirt()
	}
	if err != nil {
		return err
	}
	defer d.Close()
	client := f.node.client()
	defer client.Close()
	a := &libvirt.Attacher{Domain: d, Daemon: client, Run: f.node.run, Timeout: f.timeout, Hook: hookInstalled(hookFolders)}
	r, err := fn(ctx, a)
	if err != nil {
		return err
	}
	return f.print(cmd, r)
}

// print writes JSON, or a line that says what was done, and the notes.
func (f *domainFlags) print(cmd *cobra.Command, r *libvirt.Result) error {
	out, notes := cmd.OutOrStdout(), cmd.ErrOrStderr()
	if f.node.json {
		return printJSON(out, r)
	}
	for _, n := range r.Notes {
		fmt.Fprintln(notes, "note:", n)
	}
	if !r.Done {
		return nil
	}
	where := map[[2]bool]string{
		{true, false}: "the running VM", {false, true}: "the VM's definition", {true, true}: "the running VM and its definition",
	}[[2]bool{r.Live, r.Config}]
	key := r.VM + "/" + r.Name
	if f.served != "" {
		_, err := fmt.Fprintf(out, "the device of %s is %sed: %s\n", key, cmd.Name(), where)
		return err
	}
	if cmd.Name() == "detach" {
		_, err := fmt.Fprintf(out, "%s is taken out of %s, and ended. In the guest, if the mount is left: umount -l /run/causeway\n", key, where)
		return err
	}
	if text := unlimited(key, r.Limits); text != "" {
		fmt.Fprintln(notes, "warning:", text)
	}
	_, err := fmt.Fprintf(out, "%s is added to %s: %s. In the guest: %s\n", key, where, report.LimitsLine(r.Limits), mountCommand(r.Name))
	return err
}

// hookInstalled says whether libvirt will run Causeway's hook.
func hookInstalled(folder string) bool {
	for _, p := range []string{"qemu.d/causeway", "qemu"} {
		if st, err := os.Stat(filepath.Join(folder, p)); err == nil && st.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}

// done marks a result of what was done.
func done(r *libvirt.Result, err error) (*libvirt.Result, error) {
	if r != nil {
		r.Done = true
	}
	return r, err
}

func attachCommand() *cobra.Command {
	var f domainFlags
	var w wishes
	var dry, printXML bool
	c := &cobra.Command{
		Use:   "attach DOMAIN",
		Short: "Give a VM a virtual GPU, while it runs or for its next start",
		Long: `Gives a VM a virtual GPU: causewayd makes it ready, libvirt plugs it into the running domain and writes it to the domain's
definition. The domain's memory must be shared, and a running PCI Express machine needs a free root port: if something is
missing, the command says what to write into the domain's XML. If a step fails, those before it are taken back. It ends with a line
that says what the VM has now, and what the guest mounts.

A vGPU that causewayd has for the VM already (causeway create) keeps the limits that are not named.`,
		Example: `  causeway attach vm1 --gpu any --memory 16GiB --share 50
  causeway attach vm1 --profile quarter
  causeway attach vm1 --gpu H200 --config
  causeway attach vm1 --print-xml
  causeway attach vm1 --qmp /run/vm1.qmp --memory 4GiB`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := w.get(args[0])
			switch {
			case err != nil:
				return err
			case f.served != "":
				return f.plug(cmd, args[0], &spec, dry || printXML)
			case printXML:
				return printDomainXML(cmd.OutOrStdout(), spec, f.node.run)
			case f.qmp != "":
				return f.attachQMP(cmd, spec, dry)
			}
			return f.with(cmd, args[0], func(ctx context.Context, a *libvirt.Attacher) (*libvirt.Result, error) {
				if !dry {
					return done(a.Attach(ctx, spec, f.where()))
				}
				r, err := a.Plan(spec, f.where())
				if err == nil && !f.node.json {
					fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s\n", r.Metadata, r.Filesystem)
				}
				return r, err
			})
		},
	}
	f.register(c)
	w.register(c, &f.node)
	c.Flags().BoolVar(&dry, "dry-run", false, "check the domain and print the XML that would be added, and change nothing")
	c.Flags().BoolVar(&printXML, "print-xml", false, "print the parts of a domain's XML for such a vGPU, without asking anybody")
	return c
}

// printDomainXML prints what a domain's XML needs for a vGPU that libvirt's hook readies.
func printDomainXML(out io.Writer, s api.Wish, run string) error {
	if s.Name == "" {
		s.Name = "gpu0"
	}
	device, err := libvirt.FilesystemXML(s.SocketPath(run), s.Name)
	if err != nil {
		return err
	}
	indent := func(text, by string) string { return by + strings.ReplaceAll(text, "\n", "\n"+by) }
	_, err = fmt.Fprintf(out, `  <!-- below <domain> -->
  <metadata>
%s
  </metadata>
  <memoryBacking>
    <source type='memfd'/>
    <access mode='shared'/>
  </memoryBacking>
  <!-- in <devices> -->
%s
`, indent(libvirt.MetadataXML([]api.Wish{s}), "    "), indent(device, "    "))
	return err
}

func detachCommand() *cobra.Command {
	var f domainFlags
	c := &cobra.Command{
		Use:   "detach DOMAIN [NAME]",
		Short: "Take a virtual GPU out of a VM",
		Long: `Takes a virtual GPU out of a VM and ends it. CUDA programs that use it get errors; the VM goes on. The guest has to let go of the
device: if it does not in time, the command says so, and the vGPU stays.`,
		Example:           "  causeway detach vm1\n  causeway detach vm1 gpu1 --live",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: f.node.completeVM,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 2 {
				name = args[1]
			}
			if f.served != "" {
				return f.unplug(cmd, args[0], name)
			}
			if f.qmp != "" {
				return f.detachQMP(cmd, args[0], name)
			}
			return f.with(cmd, args[0], func(ctx context.Context, a *libvirt.Attacher) (*libvirt.Result, error) {
				return done(a.Detach(ctx, name, f.where()))
			})
		},
	}
	f.register(c)
	return c
}

// qmpLimit bounds each command to QEMU.
const qmpLimit = 10 * time.Second

func (f *domainFlags) attachQMP(cmd *cobra.Command, s api.Wish, dry bool) error {
	if s.Name == "" {
		s.Name = "gpu0"
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	m, err := qmp.Dial(f.qmp, qmpLimit)
	if err != nil {
		return err
	}
	defer m.Close()
	port, err := m.Check(s.Name)
	if err != nil {
		return err
	}
	socket := s.SocketPath(f.node.run)
	r := &libvirt.Result{VM: s.VM, Name: s.Name, Live: true, Socket: socket}
	if dry {
		for _, line := range qmp.Commands(s.Name, socket, port) {
			fmt.Fprintln(cmd.OutOrStdout(), line)
		}
		return nil
	}
	client := f.node.client()
	defer client.Close()
	v, err := client.Ensure(ctx, s)
	if err != nil {
		return fmt.Errorf("causewayd does not give the vGPU: %w", err)
	}
	r.GPU, r.Limits, r.Done = v.GPU, v.Spec.Limits, true
	if err := m.Attach(s.Name, socket, port); err != nil {
		if e := libvirt.ReleaseUnused(context.WithoutCancel(ctx), client, s.VM, s.Name); e != nil {
			return errors.Join(err, e)
		}
		return fmt.Errorf("%w (what was done before is taken back)", err)
	}
	return f.print(cmd, r)
}

func (f *domainFlags) detachQMP(cmd *cobra.Command, vm, name string) error {
	if name == "" {
		name = "gpu0"
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	m, err := qmp.Dial(f.qmp, qmpLimit)
	if err != nil {
		return err
	}
	defer m.Close()
	wait, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	if err := m.Detach(wait, name); err != nil {
		return err
	}
	client := f.node.client()
	defer client.Close()
	if err := libvirt.ReleaseUnused(ctx, client, vm, name); err != nil {
		return fmt.Errorf("the VM has no vGPU %s any more, but its device process still runs: %w", name, err)
	}
	return f.print(cmd, &libvirt.Result{VM: vm, Name: name, Live: true, Done: true, Socket: (&api.Spec{VM: vm, Name: name}).SocketPath(f.node.run)})
}

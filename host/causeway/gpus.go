package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/driver"
	"causeway/host/inventory"
	"causeway/host/report"
)

// gpuLine is one GPU as `causeway gpus --local --json` prints it, for this program's other
// processes.
type gpuLine struct {
	Backend string `json:"backend"`
	Index   int    `json:"index"`
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	Memory  uint64 `json:"memory"`
	Driver  string `json:"driver,omitempty"`
	MIG     string `json:"mig,omitempty"`
	// Slice is the older name of the one MIG slice that the process which asked may see: it says
	// what it is a slice of.
	Slice string `json:"slice,omitempty"`

	Compute uint32       `json:"compute,omitempty"` // capability, major*10 + minor
	Reach   driver.Reach `json:"reach,omitempty"`
}

func gpusCommand() *cobra.Command {
	var node nodeFlags
	var local, all bool
	c := &cobra.Command{
		Use:   "gpus",
		Short: "List the GPUs that this machine offers",
		Long: `Lists the GPUs that this machine offers: real ones by the number that --gpu takes, and the software GPU, which executes
PTX on the CPU. With causewayd also how much of their memory is used and promised to vGPUs, how busy they are, and whether they
are drained: a drained GPU gets no new vGPU, those that it has go on. causewayd drains a GPU itself when its driver reports a
fault that only a reset cures.

With --all also those of the GPU servers that causewayd is configured with (remote.servers), with the round trip to each and what of their memory is left.

Without causewayd the drivers are asked.`,
		Example: "  causeway gpus\n  causeway gpus --all\n  causeway gpus --json\n  causeway gpus drain 0     # before maintenance\n  causeway gpus resume 0",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if local {
				list, notes := gpus()
				if node.json {
					return json.NewEncoder(cmd.OutOrStdout()).Encode(list)
				}
				return printGPUs(cmd.OutOrStdout(), list, notes)
			}
			if all {
				return node.servers(cmd)
			}
			return node.gpus(cmd)
		},
	}
	node.register(c)
	c.Flags().BoolVar(&all, "all", false, "also those of the configured GPU servers")
	c.Flags().BoolVar(&local, "local", false, "ask the drivers in this process, whether or not causewayd runs")
	_ = c.Flags().MarkHidden("local")
	c.AddCommand(
		drainCommand("drain", "Place no new vGPU on a GPU", "Has causewayd place no new vGPU on a GPU. The vGPUs that it has go on: detach them, or end their VMs, to have it free.", (*api.Client).Drain),
		drainCommand("resume", "Place vGPUs on a drained GPU again", "Has causewayd place vGPUs on a GPU again that was drained, by an operator or for a fault.", (*api.Client).Resume),
	)
	return c
}

// gpus prints what causewayd knows of them, or the drivers.
func (f *nodeFlags) gpus(cmd *cobra.Command) error {
	c := f.client()
	defer c.Close()
	out := cmd.OutOrStdout()
	r, err := readDaemon(cmd.Context(), c)
	switch {
	case errors.Is(err, api.ErrNotRunning):
		list, notes := gpus()
		if !f.json {
			return printGPUs(out, list, append(notes, "causewayd does not run: use, promises and drains are not known"))
		}
		return printJSON(out, apiGPUs(list))
	case err != nil:
		return err
	}
	r.Sort()
	if f.json {
		return printJSON(out, append([]api.GPU{}, r.GPUs...))
	}
	return report.GPUs(out, r)
}

// allGPUs are this host's GPUs, and its GPU servers with theirs.
type allGPUs struct {
	GPUs    []api.GPU    `json:"gpus"`
	Servers []api.Server `json:"servers"`
}

// servers prints what causewayd knows of this host's GPUs, and what its GPU servers say of theirs.
func (f *nodeFlags) servers(cmd *cobra.Command) error {
	c := f.client()
	defer c.Close()
	r, err := readDaemon(cmd.Context(), c)
	if err != nil {
		return err
	}
	r.Sort()
	servers, err := c.Servers(cmd.Context())
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if f.json {
		return printJSON(out, allGPUs{append([]api.GPU{}, r.GPUs...), append([]api.Server{}, servers...)})
	}
	if err := report.GPUs(out, r); err != nil {
		return err
	}
	fmt.Fprintln(out)
	return report.Servers(out, servers)
}

func drainCommand(name, short, long string, do func(*api.Client, context.Context, string) error) *cobra.Command {
	var node nodeFlags
	c := &cobra.Command{
		Use:               name + " GPU",
		Short:             short,
		Long:              long + "\nGPU is a number as `causeway gpus` shows it, soft, or a UUID.",
		Example:           "  causeway gpus " + name + " 0",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: node.completeGPU,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := node.client()
			defer c.Close()
			r, err := readDaemon(cmd.Context(), c)
			if err != nil {
				return err
			}
			g, err := r.GPU(args[0])
			if err != nil {
				return &api.Error{Status: 404, Text: err.Error(), Remedy: "`causeway gpus` lists them"}
			}
			if err := do(c, cmd.Context(), g.ID); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), drainedLine(name, g))
			return err
		},
	}
	node.registerRun(c)
	return c
}

// drainedLine says what drain or resume did.
func drainedLine(name string, g *api.GPU) string {
	line := "GPU " + report.GPUNumber(g) + " takes vGPUs again"
	if name == "drain" {
		line = "GPU " + report.GPUNumber(g) + " gets no new vGPU"
		if len(g.VGPUs) > 0 {
			line += "; those that it has go on: " + strings.Join(g.VGPUs, ", ")
		}
	}
	return line
}

// completeGPUFlag offers what --gpu takes where causewayd is asked.
func (f *nodeFlags) completeGPUFlag(cmd *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
	list, how := f.completeGPU(cmd, nil, text)
	return append([]string{cobra.CompletionWithDesc("any", "one that has room")}, list...), how
}

// completeLocalGPU offers what --gpu takes where this process opens the GPU.
func completeLocalGPU(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	words := []string{cobra.CompletionWithDesc("auto", "a real one if there is any"), "any", "all"}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	list, err := askGPUs(ctx, nil)
	if err != nil {
		return append(words, "soft"), cobra.ShellCompDirectiveNoFileComp
	}
	told := apiGPUs(list)
	for i := range told {
		words = append(words, cobra.CompletionWithDesc(report.GPUNumber(&told[i]), told[i].Name))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completeGPU offers the GPUs' numbers, for shells.
func (f *nodeFlags) completeGPU(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	c := f.client()
	defer c.Close()
	r, err := readDaemon(cmd.Context(), c)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	r.Sort()
	var list []string
	for i := range r.GPUs {
		list = append(list, cobra.CompletionWithDesc(report.GPUNumber(&r.GPUs[i]), r.GPUs[i].Name))
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

// completeServer offers what --remote takes where a vGPU is made.
func (f *nodeFlags) completeServer(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	words := []string{cobra.CompletionWithDesc(api.RemoteAny, "the nearest that has room")}
	c := f.client()
	defer c.Close()
	list, err := c.Servers(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for i := range list {
		about := list[i].Error
		if about == "" {
			about = fmt.Sprintf("%d GPUs, %.2f ms", len(list[i].GPUs), list[i].RoundTrip.Seconds()*1000)
		}
		words = append(words, cobra.CompletionWithDesc(list[i].Name, about))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// apiGPUs is what causewayd would say of GPUs that only their drivers tell of.
func apiGPUs(list []gpuLine) []api.GPU {
	told := []api.GPU{}
	for _, g := range list {
		told = append(told, api.GPU{ID: g.UUID, Index: g.Index, Backend: g.Backend, Name: g.Name, Memory: g.Memory, Driver: g.Driver, NUMA: -1})
	}
	return told
}

// gpus asks every backend. notes says why one has none.
func gpus() (list []gpuLine, notes []string) {
	for _, open := range []func() (driver.Backend, error){newCUDA, newSoft} {
		b, err := open()
		if err != nil {
			notes = append(notes, err.Error())
			continue
		}
		devs, err := b.Devices()
		if err != nil {
			notes = append(notes, fmt.Sprintf("%s: %v", b.Name(), err))
			continue
		}
		for _, d := range devs {
			list = append(list, gpuLine{Backend: b.Name(), Index: d.Index, Name: d.Name, UUID: d.UUID, Memory: d.TotalMem, Compute: d.Compute, Reach: d.Reach})
		}
		if err := describe(b.Name(), list); err != nil {
			notes = append(notes, err.Error())
		}
	}
	return list, notes
}

// describe adds what the driver's management library knows of a backend's GPUs.
func describe(backend string, list []gpuLine) error {
	src, err := openInventory(backend, nil)
	if err != nil {
		return err
	}
	slice := os.Getenv(visibleEnv)
	if n, ok := src.(*inventory.NVML); ok && strings.HasPrefix(slice, "MIG-") {
		n.Watch() // tells of slices
	}
	r, err := src.Read()
	if err != nil {
		return err
	}
	for i := range list {
		l := &list[i]
		if l.Backend != backend || l.Index >= len(r.Devices) {
			continue
		}
		for _, s := range r.Slices {
			if s.UUID == slice {
				l.Slice = s.Name()
			}
		}
		l.Driver = r.Driver
		switch r.Devices[l.Index].MigCurrent {
		case 0:
			l.MIG = "off"
		case 1:
			l.MIG = "on"
		}
	}
	return nil
}

func printGPUs(w io.Writer, list []gpuLine, notes []string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "GPU\tNAME\tMEMORY\tDRIVER\tMIG\tUUID")
	for _, g := range list {
		name := fmt.Sprint(g.Index)
		if g.Backend == "soft" {
			name = "soft"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", name, g.Name, formatBytes(g.Memory), cmp.Or(g.Driver, "-"), cmp.Or(g.MIG, "-"), g.UUID)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range notes {
		fmt.Fprintln(w, "note:", n)
	}
	return nil
}

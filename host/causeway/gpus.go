package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"causeway/host/driver"
)

// gpuLine is one GPU as `causeway gpus --json` prints it.
type gpuLine struct {
	Backend string `json:"backend"`
	Index   int    `json:"index"`
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	Memory  uint64 `json:"memory"`
	Driver  string `json:"driver,omitempty"`
	MIG     string `json:"mig,omitempty"`
}

func gpusCommand() *cobra.Command {
	var asJSON, local bool
	c := &cobra.Command{
		Use:   "gpus",
		Short: "List the GPUs that this machine offers",
		Long: `Lists the GPUs that this machine offers: real ones by the number that --gpu takes, and the software GPU, which executes
PTX on the CPU and is always there.`,
		Example: "  causeway gpus\n  causeway gpus --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, notes := gpus()
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(list)
			}
			return printGPUs(cmd.OutOrStdout(), list, notes)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&local, "local", false, "ask the drivers in this process, whether or not causewayd runs")
	return c
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
			list = append(list, gpuLine{Backend: b.Name(), Index: d.Index, Name: d.Name, UUID: d.UUID, Memory: d.TotalMem})
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
	r, err := src.Read()
	if err != nil {
		return err
	}
	for i := range list {
		l := &list[i]
		if l.Backend != backend || l.Index >= len(r.Devices) {
			continue
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

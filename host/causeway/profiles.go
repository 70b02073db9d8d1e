package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/limit"
	"causeway/host/report"
)

func profilesCommand() *cobra.Command {
	var node nodeFlags
	c := &cobra.Command{
		Use:   "profiles",
		Short: "List the profiles of limits, and what they are on this host's GPUs",
		Long: `Lists the profiles that --profile and the attribute profile of a domain's XML take: a part of a GPU's memory (less what the
driver and the workers that wait ready need), and a share. For each GPU it shows how much memory that is, and how many more vGPUs of
the profile find room there now. The table [profiles] of causewayd.toml makes others.

Without causewayd the usual ones are shown, as this machine's GPUs have them.`,
		Example: `  causeway profiles
  causeway create vm1 --profile quarter
  causeway limits vm1 --profile half`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, gpus, err := node.profiles(cmd.Context())
			if err != nil {
				return err
			}
			if node.json {
				return printJSON(cmd.OutOrStdout(), list)
			}
			return report.Profiles(cmd.OutOrStdout(), list, gpus)
		},
	}
	node.register(c)
	return c
}

// profiles asks causewayd, or the drivers, which know nothing of room.
func (f *nodeFlags) profiles(ctx context.Context) ([]api.Profile, []api.GPU, error) {
	c := f.client()
	defer c.Close()
	list, err := c.Profiles(ctx)
	if errors.Is(err, api.ErrNotRunning) {
		list, told := localProfiles()
		return list, told, nil
	}
	if err != nil {
		return nil, nil, err
	}
	gpus, err := c.GPUs(ctx)
	return list, gpus, err
}

func localProfiles() ([]api.Profile, []api.GPU) {
	list, _ := gpus()
	told := apiGPUs(list)
	var all []api.Profile
	for name, p := range limit.Profiles() {
		one := api.Profile{Name: name, Profile: p}
		for i, g := range list {
			m, err := p.Memory.On(g.limits(1))
			on := api.ProfileOn{GPU: told[i].ID, Memory: uint64(m), Room: -1}
			if err != nil {
				on = api.ProfileOn{GPU: told[i].ID, Why: err.Error()}
			}
			one.On = append(one.On, on)
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b api.Profile) int {
		return cmp.Or(-cmp.Compare(a.Share, b.Share), cmp.Compare(a.Name, b.Name))
	})
	return all, told
}

// limits is a GPU as limits see it, with so many workers that wait ready.
func (g *gpuLine) limits(waiting int) limit.GPU {
	return limit.GPU{Soft: g.Backend != "cuda", Name: g.Name, Memory: g.Memory, Waiting: waiting}
}

// completeProfile offers the profiles' names, for shells.
func (f *nodeFlags) completeProfile(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	c := f.client()
	defer c.Close()
	list, err := c.Profiles(cmd.Context())
	if err != nil {
		return slices.Sorted(maps.Keys(limit.Profiles())), cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, p := range list {
		names = append(names, cobra.CompletionWithDesc(p.Name, p.Memory.String()+" of the memory"))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

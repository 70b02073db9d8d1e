package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"causeway/host/api"
	"causeway/host/limit"
	"causeway/host/slurm"
)

// slurmPatience is less than slurmd waits for a prolog or an epilog where slurm.conf says for how
// long.
const slurmPatience = 30 * time.Second

func slurmCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "slurm",
		Short: "Hold parts of GPUs for the jobs of a Slurm cluster",
		Long: `Slurm counts shards of GPUs (gres/shard) and licences, and holds nobody to them. With these commands as Prolog, Epilog and TaskProlog of slurm.conf, a job
of N shards has a vGPU of N parts of the GPU's memory and time while it runs, and no more of either; a job with licences has one on a GPU server. docs/SLURM.md
has the set-up from its beginning.`,
		Example: `  causeway slurm config --shards 32          # what slurm.conf and gres.conf say of this node
  srun --gres=shard:8 ./train               # a quarter of a GPU
  srun --licenses=causeway:16 ./train       # 16 GiB of a GPU of the network`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(slurmConfigCommand(), slurmPrologCommand(), slurmEpilogCommand(), slurmTaskPrologCommand())
	return c
}

// slurmFlags say how the site's Slurm counts.
type slurmFlags struct {
	node    nodeFlags
	cluster slurm.Cluster
	each    *limit.Memory
	notes   string
}

func (f *slurmFlags) registerNotes(c *cobra.Command) {
	c.Flags().StringVar(&f.notes, "notes", "/run/causeway-slurm", "`FOLDER` in which a job's tasks find their vGPU")
}

func (f *slurmFlags) registerLicense(c *cobra.Command) {
	c.Flags().StringVar(&f.cluster.License, "license", "", "`NAME` of the licence that counts GPUs of the network (default: none does)")
}

func (f *slurmFlags) host() *slurm.Node {
	return &slurm.Node{Cluster: f.cluster, Causewayd: f.node.client(), Notes: f.notes, Ask: slurm.Squeue, Patience: slurmPatience}
}

func slurmPrologCommand() *cobra.Command {
	var f slurmFlags
	c := &cobra.Command{
		Use:   "prolog",
		Short: "Make the vGPU of the job that begins (Prolog of slurm.conf)",
		Long: `Asks Slurm what the job that slurmd begins has of this node, and has causewayd make a vGPU of that size for the job's user. A job that asks for no GPU gets none, and
Slurm is not asked. What is wrong with a request is told by the job's tasks; the status is not 0 only for faults of the node, for Slurm drains it then.`,
		Example: "  causeway slurm prolog --shards 32\n  causeway slurm prolog --license causeway --license-memory 1GiB --remote any",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			j, err := slurm.JobFrom(os.Getenv)
			if err != nil {
				return err
			}
			if f.each != nil {
				f.cluster.Each = *f.each
			}
			return f.host().Prolog(cmd.Context(), j)
		},
	}
	f.node.registerRun(c)
	f.registerNotes(c)
	f.registerLicense(c)
	c.Flags().IntVar(&f.cluster.Shards, "shards", 0, "how many shards gres.conf makes of each GPU")
	c.Flags().BoolVar(&f.cluster.Capped, "cap", false, "jobs of shards have no more of the GPU's time than their part even while nobody else wants it")
	each := limit.Memory(1 << 30)
	f.each = &each
	c.Flags().Var(optional[limit.Memory, *limit.Memory]{&f.each, "SIZE"}, "license-memory", "GPU memory that one licence is (default: 1GiB)")
	c.Flags().StringVar(&f.cluster.Remote, "remote", api.RemoteAny, "GPU server of licences, by its name in causewayd's configuration, or any")
	return c
}

func slurmEpilogCommand() *cobra.Command {
	var f slurmFlags
	c := &cobra.Command{
		Use:     "epilog",
		Short:   "End the vGPU of the job that has ended (Epilog of slurm.conf)",
		Long:    "Ends the vGPU of the job that slurmd ends, if it has one. The status is not 0 if that could not be done: Slurm drains the node then, so that its memory is not given twice.",
		Example: "  causeway slurm epilog",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			j, err := slurm.JobFrom(os.Getenv)
			if err != nil {
				return err
			}
			return f.host().Epilog(cmd.Context(), j)
		},
	}
	f.node.registerRun(c)
	f.registerNotes(c)
	f.registerLicense(c)
	return c
}

func slurmTaskPrologCommand() *cobra.Command {
	var f slurmFlags
	var lib string
	c := &cobra.Command{
		Use:   "task-prolog",
		Short: "Print the environment of a job's task (TaskProlog of slurm.conf)",
		Long: `Prints, as slurmd wants it, what makes the task's CUDA programs use the job's vGPU: CAUSEWAY, LD_LIBRARY_PATH, PATH and CUDA_VISIBLE_DEVICES. A job that asks for no
GPU gets nothing. The task of a job that was refused does not begin, and its output has the reason.`,
		Example: "  causeway slurm task-prolog",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return slurm.Task(cmd.OutOrStdout(), os.Getenv, f.notes, lib)
		},
	}
	f.registerNotes(c)
	c.Flags().StringVar(&lib, "lib", "/usr/lib/causeway", "`FOLDER` of libcuda.so.1 and what belongs to it")
	return c
}

func slurmConfigCommand() *cobra.Command {
	var f slurmFlags
	c := &cobra.Command{
		Use:     "config",
		Short:   "Print what slurm.conf and gres.conf say of this node",
		Long:    "Prints lines for slurm.conf and gres.conf with the GPUs that causewayd has, in its order, which `causeway slurm prolog` relies on.",
		Example: "  causeway slurm config --shards 32",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := f.node.client()
			defer c.Close()
			gpus, err := c.GPUs(cmd.Context())
			if err != nil {
				return err
			}
			host, err := os.Hostname()
			if err != nil {
				return fmt.Errorf("this host's name: %w", err)
			}
			return slurm.Config(cmd.OutOrStdout(), host, f.cluster.Shards, gpus)
		},
	}
	f.node.registerRun(c)
	c.Flags().IntVar(&f.cluster.Shards, "shards", 32, "how many shards each GPU is")
	return c
}

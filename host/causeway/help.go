package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// Groups of commands, as `causeway help` shows them.
const (
	groupRun     = "run"
	groupOperate = "operate"
	groupNode    = "node"
)

var groupOf = map[string]string{
	"run": groupRun, "attach": groupRun, "detach": groupRun, "create": groupRun, "delete": groupRun,
	"ps": groupOperate, "top": groupOperate, "logs": groupOperate, "inspect": groupOperate, "limits": groupOperate, "move": groupOperate, "migrate": groupOperate, "suspend": groupOperate, "resume": groupOperate, "profiles": groupOperate, "gpus": groupOperate, "doctor": groupOperate,
	"daemon": groupNode, "device": groupNode, "scheduler": groupNode, "serve": groupNode, "serve-plain": groupNode, "certify": groupNode, "ca": groupNode, "vf": groupNode, "slurm": groupNode,
}

// arrange puts the commands into groups, and adds what is worth knowing beside them.
func arrange(c *cobra.Command) {
	c.AddCommand(exitCommand())
	c.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Give GPUs to VMs and programs:"},
		&cobra.Group{ID: groupOperate, Title: "See and operate:"},
		&cobra.Group{ID: groupNode, Title: "Processes of a node:"},
	)
	for _, sub := range c.Commands() {
		sub.GroupID = groupOf[sub.Name()]
	}
	explainArgs(c)
}

// explainArgs has a wrong number of arguments answered with what a command takes.
func explainArgs(c *cobra.Command) {
	for _, sub := range c.Commands() {
		explainArgs(sub)
		check := sub.Args
		if check == nil {
			continue
		}
		sub.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return fmt.Errorf("%w: use `%s`; `%s --help` has examples", err, cmd.UseLine(), cmd.CommandPath())
			}
			return nil
		}
	}
}

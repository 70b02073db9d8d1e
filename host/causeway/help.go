package main

import "github.com/spf13/cobra"

// Groups of commands, as `causeway help` shows them.
const (
	groupRun     = "run"
	groupOperate = "operate"
	groupNode    = "node"
)

var groupOf = map[string]string{
	"run": groupRun, "attach": groupRun, "detach": groupRun, "create": groupRun, "delete": groupRun,
	"ps": groupOperate, "top": groupOperate, "logs": groupOperate, "inspect": groupOperate, "limits": groupOperate, "profiles": groupOperate, "gpus": groupOperate, "doctor": groupOperate,
	"daemon": groupNode, "device": groupNode, "scheduler": groupNode, "serve": groupNode,
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
}

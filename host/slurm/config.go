package slurm

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"causeway/host/api"
)

// Config prints what slurm.conf and gres.conf say of a node with so many shards of each GPU.
func Config(out io.Writer, host string, shards int, gpus []api.GPU) error {
	if shards < 1 || shards > mostShards {
		return fmt.Errorf("%d shards of a GPU: use 1 to %d", shards, mostShards)
	}
	if len(gpus) == 0 {
		return errors.New("causewayd has no GPU here; jobs with licences need no line in gres.conf")
	}
	gpus = slices.Clone(gpus)
	slices.SortFunc(gpus, func(a, b api.GPU) int { return a.Index - b.Index })
	p := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	p("# slurm.conf, on all nodes")
	p("GresTypes=gpu,shard")
	p("SelectType=select/cons_tres")
	p("PrologFlags=Alloc")
	p("Prolog=/etc/slurm/causeway-prolog          # exec causeway slurm prolog --shards %d", shards)
	p("Epilog=/etc/slurm/causeway-epilog          # exec causeway slurm epilog")
	p("TaskProlog=/etc/slurm/causeway-task-prolog # exec causeway slurm task-prolog")
	p("NodeName=%s Gres=gpu:%d,shard:%d  # and what else your line says", host, len(gpus), shards*len(gpus))
	p("# gres.conf")
	for i := range gpus {
		p("NodeName=%s Name=gpu File=%s  # %s, %s", host, file(&gpus[i]), gpus[i].Name, gpus[i].ID)
	}
	p("NodeName=%s Name=shard Count=%d", host, shards*len(gpus))
	return nil
}

// mostShards of a GPU: Slurm counts them with 16 bits in places.
const mostShards = 1024

// file is what Slurm knows a GPU by: it must be there, and nothing else is done with it.
func file(g *api.GPU) string {
	if g.Backend == "soft" {
		return "/dev/null"
	}
	return fmt.Sprintf("/dev/nvidia%d", g.Index)
}

package main

import (
	"errors"
	"strconv"

	"github.com/spf13/cobra"

	"causeway/host/api"
)

// wishes are the flags that say what a vGPU is to be. What is not named stays, or is the
// configuration's.
type wishes struct{ wish api.Wish }

func (w *wishes) register(c *cobra.Command, node *nodeFlags) {
	c.Flags().StringVar(&w.wish.Name, "name", "", "`NAME` of the vGPU in the VM, and its mount tag (default: the first free of gpu0, gpu1...)")
	c.Flags().StringVar(&w.wish.GPU, "gpu", "", "`GPU`: any, a number, numbers as in 0,1, a UUID, a part of a model's name such as H200, or soft (default: any)")
	_ = c.RegisterFlagCompletionFunc("gpu", node.completeGPUFlag)
	c.Flags().StringVar(&w.wish.MIG, "mig", "", "`PROFILE` of a MIG slice, as in 1g.18gb")
	c.Flags().Func("remote", "GPU `SERVER` of causewayd's configuration (remote.servers, remote.domain) on which the vGPU is to lie, or any: the nearest that has room (default: this host)", func(v string) error {
		if v == "" { // a script's variable that is not set, say
			return errors.New("no server is named: `causeway gpus --all` lists them, any is the nearest that has room; without --remote the GPU is this host's")
		}
		w.wish.Remote = v
		return nil
	})
	_ = c.RegisterFlagCompletionFunc("remote", node.completeServer)
	c.Flags().BoolFunc("migratable", "sessions on a real GPU may move to other workers (--migratable=false: they may not)", func(v string) error {
		yes, err := strconv.ParseBool(v)
		w.wish.Migratable = &yes
		return err
	})
	changeFlags(c, node, &w.wish.Change)
}

func (w *wishes) get(domain string) (api.Wish, error) {
	s := w.wish
	s.VM = domain
	named := s
	if named.Name == "" {
		named.Name = "gpu0"
	}
	return s, named.Check()
}

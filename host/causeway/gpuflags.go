package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"causeway/host/limit"
	"causeway/host/worker/link"
	"causeway/remote/resume"
	"causeway/remote/verbs"
)

// gpuFlags say which GPU a session gets.
type gpuFlags struct {
	gpu     string
	memory  *limit.Memory
	host    *limit.HostMemory
	verbose bool
	warm    int
	reach   bool
	migrate bool
	rdma    string
	direct  bool
	peer    bool
	conns   int
	pairs   int
	part    string
	sandbox sandboxFlag
}

func (f *gpuFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.gpu, "gpu", "auto", "`GPU` to use: auto (real ones if there are any, else soft), any (one), soft, soft:2 for two software GPUs, soft/1 for the second alone, numbers as in 0 or 0,1, all, a UUID of a GPU or MIG slice, or a part of a model's name as in H200")
	_ = c.RegisterFlagCompletionFunc("gpu", completeLocalGPU)
	memoryFlag(c, &f.memory, " (default: none)")
	hostMemoryFlag(c, &f.host, " (default "+limit.HostMemory(limit.DefaultHostMemory).String()+")")
	c.Flags().IntVar(&f.warm, "warm", 1, "workers that wait with the driver of a real GPU started: each holds a context (some 500 MiB of GPU memory); 0: none")
	f.sandbox.register(c)
	c.Flags().BoolVar(&f.reach, "kernels-reach-worker", false, "permit GPUs whose kernels can address all memory of a worker (HMM, ATS): a guest then owns its worker. \"causeway doctor\" tells, and how to end it")
	c.Flags().BoolVar(&f.migrate, "migratable", false, "sessions on real GPUs may move to another worker: memory comes from addresses that the workers choose. Those of software GPUs always may")
	c.Flags().StringVar(&f.rdma, "rdma", rdmaOff, "whether sessions between this host and a GPU server go by RDMA, in the clear: off, auto, or a `DEVICE` or DEVICE/PORT as in mlx5_0/1")
	completeWords(c, "rdma", rdmaOff, link.RDMAAuto)
	c.Flags().BoolVar(&f.direct, "guest-rdma", false, "let programs of a vGPU on a GPU server be RDMA ends themselves, by an adapter of their VM's (a virtual function), in the clear: nothing of their sessions goes by this host then")
	c.Flags().BoolVar(&f.peer, "gpu-direct", false, "at a GPU server with --rdma: tell the adapter of GPU memory, by dma-buf or nvidia-peermem, so that copies do not pass through this host's; not tried on hardware yet")
	c.Flags().IntVar(&f.conns, "copy-connections", resume.DefaultBranches, "TCP connections that a session between this host and a GPU server may have for its copies, beside the one for its calls, once it copies: 0 to 8")
	c.Flags().IntVar(&f.pairs, "rdma-queue-pairs", 1, "queue pairs that a session's copies may have with --rdma, over the ports of this host's adapters: 1 to 8; 0: one for each port")
	c.Flags().StringVar(&f.part, "rdma-partition", "", "the `P_KEY`, as in 0x8001, of the InfiniBand partition that sessions go by with --rdma (default: the first of a port's table)")
	c.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "say what happens on stderr")
}

// rdmaOff is a --rdma that has nothing go by RDMA.
const rdmaOff = "off"

// config is the part of a worker's configuration that the flags decide.
func (f *gpuFlags) config() (link.Config, error) {
	c := link.Config{GPU: f.gpu, LogLevel: level(f.verbose).String(), HostMemory: f.hostMemory().PerSession(), ReachWorker: f.reach, Migratable: f.migrate}
	if f.migrate {
		c.Base = link.DrawBase()
	}
	switch {
	case isAuto(f.gpu):
		c.GPU = "auto"
	case isSoft(f.gpu):
	case strings.HasPrefix(f.gpu, "soft/"):
		n, ok := softOrdinal(f.gpu)
		if !ok {
			return c, fmt.Errorf("--gpu %s: software GPUs are soft/0 to soft/%d: %w", f.gpu, maxSoft-1, errNoGPU)
		}
		c.GPU, c.Devices = softName(n), []int{n}
	case f.gpu == "all" || isOrdinals(f.gpu):
		if err := present(f.gpu); err != nil {
			return c, err
		}
		c.GPU = "cuda"
		if f.gpu != "all" { // all: nothing is held back
			list, err := parseOrdinals(f.gpu)
			if err != nil {
				return c, err
			}
			c.Devices = list
		}
	default:
		list, err := askGPUs(context.Background(), nil)
		if err != nil {
			return c, err
		}
		if err := named(&c, f.gpu, list); err != nil {
			return c, err
		}
		if f.sandbox.slice, err = sliceOf(context.Background(), c, askGPUs); err != nil {
			return c, err
		}
	}
	if f.warm < 0 || f.warm > maxWorkers {
		return c, fmt.Errorf("--warm %d: use 0 to %d", f.warm, maxWorkers)
	}
	if f.memory != nil {
		c.MemoryLimit = uint64(*f.memory)
	}
	if f.rdma != rdmaOff {
		c.RDMA = f.rdma
	}
	c.Direct, c.GPUDirect = f.direct, f.peer
	if f.conns < 0 || f.conns > resume.MostBranches {
		return c, fmt.Errorf("--copy-connections %d: use 0 to %d", f.conns, resume.MostBranches)
	}
	c.Branches = f.conns
	if f.pairs < 0 || f.pairs > verbs.MostPairs {
		return c, fmt.Errorf("--rdma-queue-pairs %d: use 1 to %d, or 0 for one of each port", f.pairs, verbs.MostPairs)
	}
	c.Pairs = f.pairs
	partition, err := verbs.ParsePartition(f.part)
	if err != nil {
		return c, fmt.Errorf("--rdma-partition: %w", err)
	}
	c.Partition = uint16(partition)
	return c, nil
}

// checkHostMemory refuses a budget of host memory that this host does not have.
func (f *gpuFlags) checkHostMemory() error { return f.hostMemory().Fits(limit.OfHost()) }

// hostMemory is the budget of host memory of all sessions together.
func (f *gpuFlags) hostMemory() limit.HostMemory {
	if f.host == nil {
		return limit.DefaultHostMemory
	}
	return *f.host
}

// formatBytes is a size for people, rounded down to a readable unit.
func formatBytes(n uint64) string {
	for _, u := range []struct {
		shift uint
		name  string
	}{{40, "TiB"}, {30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n >= 1<<u.shift {
			if n%(1<<u.shift) == 0 {
				return fmt.Sprintf("%d %s", n>>u.shift, u.name)
			}
			return fmt.Sprintf("%.1f %s", float64(n)/float64(uint64(1)<<u.shift), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

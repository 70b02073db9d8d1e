package slurm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrNotSlurm says that a command was not started by slurmd.
var ErrNotSlurm = errors.New("this is for slurmd to start, as Prolog, Epilog or TaskProlog of slurm.conf (docs/SLURM.md)")

// Job is what slurmd tells in the environment (prolog and epilog guide).
type Job struct {
	ID   uint32
	UID  uint32
	GPUs []int // SLURM_JOB_GPUS: those of the node that it uses, as gres.conf counts them
}

// JobFrom reads it from the variables of an environment.
func JobFrom(variable func(string) string) (Job, error) {
	var j Job
	var err error
	if j.ID, err = number(variable, "SLURM_JOB_ID"); err != nil {
		return Job{}, err
	}
	if j.UID, err = number(variable, "SLURM_JOB_UID"); err != nil {
		return Job{}, err
	}
	list := variable("SLURM_JOB_GPUS")
	if list == "" {
		return j, nil
	}
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.ParseUint(word, 10, 16)
		if err != nil || len(j.GPUs) == mostGPUs {
			return Job{}, fmt.Errorf("SLURM_JOB_GPUS is %.200q, which are no GPUs", list)
		}
		j.GPUs = append(j.GPUs, int(n))
	}
	return j, nil
}

// mostGPUs bounds those of a node.
const mostGPUs = 1024

func number(variable func(string) string, name string) (uint32, error) {
	s := variable(name)
	if s == "" {
		return 0, fmt.Errorf("%s is not set: %w", name, ErrNotSlurm)
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s is %.200q: %w", name, s, ErrNotSlurm)
	}
	return uint32(n), nil
}

// VM names the job to causewayd.
func (j Job) VM() string { return fmt.Sprintf("slurm-%d", j.ID) }

// GPU names its vGPU.
const GPU = "gpu0"

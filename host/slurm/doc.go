// Package slurm holds vGPUs for the jobs of a Slurm cluster, on GPUs of the job's node and on those
// of GPU servers.
//
// Slurm counts and places: shards of a GPU (gres/shard), whole GPUs (gres/gpu), or licences, which
// are for GPUs that the network reaches. What it counts it does not hold: a job of one shard can
// fill the GPU. So the node's prolog has causewayd make a vGPU of the job's size, for the job's
// user alone, and the epilog takes it back; programs of the job see that vGPU and nothing else.
//
// Order: slurmd runs Prolog as root before the first task of a job; Task, as the user, before each
// task; Epilog as root when all have ended. Prolog leaves a note for Task, and Epilog removes it.
// All may run again: Slurm repeats what failed. An error of Prolog or Epilog has Slurm drain the
// node, so only the node's own faults are errors; what is wrong with a request is in the note, and
// ends the job's tasks with the reason in their output.
//
// What slurmd and squeue say comes in part from users: it is read once, by JobFrom and parseWish,
// and nothing of it but numbers goes further.
package slurm

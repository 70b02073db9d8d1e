package slurm

import (
	"fmt"
	"strconv"
	"strings"

	"causeway/host/api"
	"causeway/host/limit"
)

// Cluster is how the site's Slurm counts, and what that is worth.
type Cluster struct {
	Shards int // of each GPU, as gres.conf has it
	// Jobs of shards have no more of the GPU's time than their part even while nobody else wants
	// it.
	Capped  bool
	License string       // the licence that counts GPUs of the network; empty: none does
	Remote  string       // where those are: a GPU server, or any
	Each    limit.Memory // what one licence is
}

// request is what a job asked for on each of its nodes.
type request struct {
	shards, gpus uint64
	licenses     uint64 // of the whole job
	nodes        uint64
}

// squeueFormat has squeue print, for each job: its number, generic resources per node, licences,
// nodes. None of them is text of the user's own: Slurm takes names of resources that it knows and
// numbers.
const squeueFormat = "%A|%b|%W|%D"

// parseRequest finds a job's line. license is the one that counts.
func parseRequest(text string, job uint32, license string) (request, error) {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 4 || f[0] != strconv.FormatUint(uint64(job), 10) {
			continue
		}
		var r request
		var err error
		if r.nodes, err = strconv.ParseUint(f[3], 10, 32); err != nil || r.nodes == 0 {
			return request{}, fmt.Errorf("squeue says that job %d is on %.200q nodes", job, f[3])
		}
		for word := range words(f[1]) {
			if err := r.add(word); err != nil {
				return request{}, err
			}
		}
		for word := range words(f[2]) {
			name, n, err := counted(word)
			if err != nil {
				return request{}, err
			}
			if name, _, _ = strings.Cut(name, "@"); license != "" && name == license {
				r.licenses += n
			}
		}
		return r, nil
	}
	return request{}, fmt.Errorf("squeue knows nothing of job %d", job)
}

// words are those of a list of squeue's, which says N/A or (null) for none.
func words(list string) func(func(string) bool) {
	return func(yield func(string) bool) {
		if list == "" || list == "N/A" || list == "(null)" {
			return
		}
		for word := range strings.SplitSeq(list, ",") {
			if !yield(word) {
				return
			}
		}
	}
}

// add counts a generic resource: gres:shard:8, gres/gpu:h100:1 or gres/gpu.
func (r *request) add(word string) error {
	kind, rest, found := strings.Cut(word, ":")
	if found && kind == "gres" {
		kind, rest, _ = strings.Cut(rest, ":")
	} else {
		kind = strings.TrimPrefix(kind, "gres/")
	}
	if kind != "gpu" && kind != "shard" {
		return nil // somebody else's
	}
	n := uint64(1)
	if at := strings.LastIndexByte(rest, ':'); rest != "" { // a type before it, or only a type
		count, err := strconv.ParseUint(rest[at+1:], 10, 16)
		switch {
		case err == nil:
			n = count
		case at >= 0 || rest[0] >= '0' && rest[0] <= '9':
			return fmt.Errorf("squeue has a count of GPUs that is none: %.200q", word)
		}
	}
	if kind == "gpu" {
		r.gpus += n
	} else {
		r.shards += n
	}
	return nil
}

// counted is NAME:COUNT, or NAME, which counts 1.
func counted(word string) (string, uint64, error) {
	name, count, found := strings.Cut(word, ":")
	if !found {
		return name, 1, nil
	}
	n, err := strconv.ParseUint(count, 10, 32)
	if err != nil {
		return "", 0, fmt.Errorf("squeue has a count of licences that is none: %.200q", word)
	}
	return name, n, nil
}

// Refusal is what is wrong with a job's request, for its user.
type Refusal string

func (r Refusal) Error() string { return string(r) }

func refuse(format string, args ...any) error { return Refusal(fmt.Sprintf(format, args...)) }

// shareOfGPU is what the programs of a whole GPU have when several want it, and those of shards
// their part of.
const shareOfGPU = 1000

// wish is the vGPU of a job, whose GPUs the node has.
func (c *Cluster) wish(j Job, r request, gpus []api.GPU) (api.Wish, error) {
	programs, users := true, limit.UserSessions(limit.MostSessions)
	w := api.Wish{VM: j.VM(), Name: GPU, Programs: &programs, Owner: strconv.FormatUint(uint64(j.UID), 10)}
	w.UserSessions = &users // all its programs are one user's
	if r.licenses > 0 {
		if len(j.GPUs) > 0 {
			return api.Wish{}, refuse("a job has GPUs of its node or of the network, not both: ask with --gres or with --licenses")
		}
		err := c.far(&w, r)
		return w, err
	}
	if len(j.GPUs) != 1 {
		return api.Wish{}, refuse("a job's programs see one GPU on each node, and this job has %d: ask with --gres=gpu:1 or --gres=shard:N", len(j.GPUs))
	}
	gpu, err := gpuOf(gpus, j.GPUs[0])
	if err != nil {
		return api.Wish{}, err
	}
	w.GPU = gpu.ID
	memory, share, most := limit.Memory(0), limit.Share(shareOfGPU), limit.Cap(0)
	switch {
	case r.shards > 0 && r.gpus > 0:
		return api.Wish{}, refuse("a job has shards or whole GPUs, not both")
	case r.shards > 0 && (c.Shards <= 0 || r.shards > uint64(c.Shards)):
		return api.Wish{}, fmt.Errorf("job %d has %d shards of a GPU that has %d (--shards of `causeway slurm prolog`; gres.conf says how many)", j.ID, r.shards, c.Shards)
	case r.shards > 0:
		n, all := r.shards, uint64(c.Shards)
		if memory = limit.Memory(gpu.Memory / all * n &^ (1<<20 - 1)); memory == 0 {
			// Which would be no limit.
			return api.Wish{}, fmt.Errorf("job %d has %d of %d shards of GPU %d, whose memory is %v: no part of it", j.ID, n, all, j.GPUs[0], limit.Memory(gpu.Memory))
		}
		share = limit.Share(max(1, shareOfGPU*n/all))
		if c.Capped && n < all {
			most = limit.Cap(max(1, 100*n/all))
		}
	case r.gpus != 1:
		return api.Wish{}, refuse("the job has a part of GPU %d that cannot be told: ask with --gres=shard:N or --gres=gpu:1", j.GPUs[0])
	}
	w.Memory, w.Share, w.Cap = &memory, &share, &most
	return w, nil
}

// far is the wish of a job that has licences.
func (c *Cluster) far(w *api.Wish, r request) error {
	n := r.licenses / r.nodes
	if n*r.nodes != r.licenses {
		return refuse("%d licences of %s are not the same number for each of the job's %d nodes: ask for a multiple", r.licenses, c.License, r.nodes)
	}
	memory := limit.Memory(uint64(c.Each) * n)
	if c.Each == 0 || uint64(memory)/n != uint64(c.Each) {
		return fmt.Errorf("%d licences of %s (--license-memory of `causeway slurm prolog`) are no amount of memory", n, c.Each)
	}
	w.GPU, w.Remote, w.Memory = "any", c.Remote, &memory
	return nil
}

// gpuOf is the GPU that Slurm counts at an index: gres.conf has them in causewayd's order, as
// `causeway slurm config` prints it.
func gpuOf(gpus []api.GPU, index int) (*api.GPU, error) {
	for i := range gpus {
		if gpus[i].Index == index {
			return &gpus[i], nil
		}
	}
	return nil, fmt.Errorf("slurmd's GPU %d is none of causewayd's, which has %d: `causeway slurm config` prints what gres.conf has to say", index, len(gpus))
}

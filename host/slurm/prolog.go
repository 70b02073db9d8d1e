package slurm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"causeway/host/api"
)

// Causewayd is what is asked of the node's causewayd. *api.Client is one.
type Causewayd interface {
	GPUs(ctx context.Context) ([]api.GPU, error)
	// Ensure has a vGPU ready, or says what is in the way.
	Ensure(ctx context.Context, w api.Wish) (api.VGPU, error)
	Release(ctx context.Context, vm, name string, unused bool) error
}

// Node is where jobs begin and end.
type Node struct {
	Cluster   Cluster
	Causewayd Causewayd
	Notes     string // folder of the notes
	// Ask has squeue print lines of a job in a format.
	Ask func(ctx context.Context, job uint32, format string) (string, error)
	// Patience is for how long causewayd may be away, as while it is upgraded.
	Patience time.Duration
}

// places are where squeue is looked for: slurmd starts a prolog without a PATH.
var places = [...]string{"/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin"}

// Squeue asks Slurm.
func Squeue(ctx context.Context, job uint32, format string) (string, error) {
	name, err := exec.LookPath("squeue")
	for i := 0; err != nil && i < len(places); i++ {
		name, err = exec.LookPath(filepath.Join(places[i], "squeue"))
	}
	if err != nil {
		return "", fmt.Errorf("squeue is not found in PATH, nor in %s: set PATH in the prolog", strings.Join(places[:], ", "))
	}
	cmd := exec.CommandContext(ctx, name, "--noheader", "--states=all", "--array", "--jobs="+strconv.FormatUint(uint64(job), 10), "--format="+format)
	var said strings.Builder
	cmd.Stderr = &said
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("squeue: %w: %.500s", err, strings.TrimSpace(said.String()))
	}
	return string(b), nil
}

// Prolog has the vGPU of a job ready, if the job asks for one. An error is the node's fault.
func (n *Node) Prolog(ctx context.Context, j Job) error {
	if len(j.GPUs) == 0 && n.Cluster.License == "" {
		return nil // as nearly all jobs: Slurm need not be asked
	}
	text, err := n.Ask(ctx, j.ID, squeueFormat)
	if err != nil {
		return err
	}
	r, err := parseRequest(text, j.ID, n.Cluster.License)
	if err != nil {
		return err
	}
	if len(j.GPUs) == 0 && r.licenses == 0 {
		return nil
	}
	v, err := n.ready(ctx, j, r)
	if why, refused := asRefusal(err); refused {
		return note{Refused: why}.leave(n.Notes, j.ID)
	}
	if err != nil {
		return err
	}
	return note{Socket: v.Socket}.leave(n.Notes, j.ID)
}

func (n *Node) ready(ctx context.Context, j Job, r request) (v api.VGPU, err error) {
	err = n.patiently(ctx, func() error {
		gpus, err := n.Causewayd.GPUs(ctx)
		if err != nil {
			return fmt.Errorf("the node's GPUs: %w", err)
		}
		w, err := n.Cluster.wish(j, r, gpus)
		if err != nil {
			return err
		}
		if v, err = n.Causewayd.Ensure(ctx, w); err != nil {
			return fmt.Errorf("vGPU of job %d: %w", j.ID, err)
		}
		return nil
	})
	return v, err
}

// asRefusal is what the job's user is told: what is wrong with the request, or what causewayd has
// no room for.
func asRefusal(err error) (string, bool) {
	var r Refusal
	if errors.As(err, &r) {
		return r.Error(), true
	}
	var e *api.Error
	if errors.As(err, &e) && (e.Status == http.StatusConflict || e.Status == http.StatusInsufficientStorage) {
		return err.Error(), true
	}
	return "", false
}

// Epilog takes back what Prolog gave. A job that had nothing has nothing to take back.
func (n *Node) Epilog(ctx context.Context, j Job) error {
	_, found, err := readNote(n.Notes, j.ID)
	if err == nil && !found && len(j.GPUs) == 0 && n.Cluster.License == "" {
		return nil
	}
	err = n.patiently(ctx, func() error { return n.Causewayd.Release(ctx, j.VM(), GPU, false) })
	var e *api.Error
	if errors.As(err, &e) && e.Status == http.StatusNotFound {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("vGPU of job %d is not given back: %w", j.ID, err)
	}
	if err := os.Remove(notePath(n.Notes, j.ID)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("note of job %d: %w", j.ID, err)
	}
	return nil
}

// again is when a causewayd that does not run is asked again.
const again = 200 * time.Millisecond

// patiently does something that needs causewayd, again while that does not run.
func (n *Node) patiently(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, n.Patience)
	defer cancel()
	for {
		err := do()
		if !errors.Is(err, api.ErrNotRunning) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(again):
		}
	}
}

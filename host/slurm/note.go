package slurm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"causeway/remote/sys"
)

// note is what Prolog tells Task of a job: the socket of its vGPU, or why it has none.
type note struct {
	Socket  string `json:"socket,omitempty"`
	Refused string `json:"refused,omitempty"`
}

// mostNote bounds a note, which only root writes.
const mostNote = 64 << 10

func notePath(dir string, job uint32) string {
	return filepath.Join(dir, strconv.FormatUint(uint64(job), 10))
}

// leave writes a note that all may read, whole or not at all.
func (n note) leave(dir string, job uint32) error {
	err := os.MkdirAll(dir, 0o755)
	if err != nil {
		return fmt.Errorf("note of job %d: %w", job, err)
	}
	b, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("note of job %d: %w", job, err)
	}
	if err := sys.Replace(notePath(dir, job), b, 0o644); err != nil {
		return fmt.Errorf("note of job %d: %w", job, err)
	}
	return nil
}

func readNote(dir string, job uint32) (n note, found bool, err error) {
	b, err := sys.ReadRegular(notePath(dir, job), mostNote)
	if errors.Is(err, fs.ErrNotExist) {
		return note{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &n)
	}
	if err != nil {
		return note{}, false, fmt.Errorf("note of job %d: %w", job, err)
	}
	return n, true, nil
}

// Task writes what slurmd adds to a task's environment (TaskProlog of slurm.conf(5)): where its
// vGPU and Causeway's libraries are. Of a job that was refused it writes the reason, for the task's
// output, and returns it as an error: the task does not begin.
func Task(out io.Writer, variable func(string) string, dir, libraries string) error {
	j, err := JobFrom(variable)
	if err != nil {
		return err
	}
	n, found, err := readNote(dir, j.ID)
	if err != nil || !found {
		return err
	}
	if n.Refused != "" {
		fmt.Fprintf(out, "print causeway: %s\n", strings.ReplaceAll(n.Refused, "\n", " "))
		return Refusal(n.Refused)
	}
	for _, e := range [][2]string{
		{"CAUSEWAY", "unix:" + n.Socket},
		{"LD_LIBRARY_PATH", before(libraries, variable("LD_LIBRARY_PATH"))},
		{"PATH", before(filepath.Join(libraries, "bin"), variable("PATH"))},
		{"CUDA_VISIBLE_DEVICES", "0"}, // Slurm's counts the node's GPUs
	} {
		if _, err := fmt.Fprintf(out, "export %s=%s\n", e[0], e[1]); err != nil {
			return fmt.Errorf("environment of a task: %w", err)
		}
	}
	return nil
}

// before puts a folder before those of a list.
func before(dir, list string) string {
	if list == "" {
		return dir
	}
	return dir + ":" + list
}

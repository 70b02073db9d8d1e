package slurm

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/limit"
)

// fakeDaemon is a causewayd with GPUs that keeps what it is asked for.
type fakeDaemon struct {
	gpus     []api.GPU
	away     int // it does not run so many times
	fail     error
	wish     *api.Wish
	released []string
	gone     error
}

func (f *fakeDaemon) up() error {
	if f.away > 0 {
		f.away--
		return api.ErrNotRunning
	}
	return nil
}

func (f *fakeDaemon) GPUs(context.Context) ([]api.GPU, error) { return f.gpus, f.up() }

func (f *fakeDaemon) Ensure(_ context.Context, w api.Wish) (api.VGPU, error) {
	f.wish = &w
	return api.VGPU{Socket: "/run/causeway/" + w.VM + "/s"}, f.fail
}

func (f *fakeDaemon) Release(_ context.Context, vm, name string, _ bool) error {
	if err := f.up(); err != nil {
		return err
	}
	f.released = append(f.released, vm+"/"+name)
	return f.gone
}

func variables(v map[string]string) func(string) string {
	return func(name string) string { return v[name] }
}

func newNode(t *testing.T, said string) (*Node, *fakeDaemon) {
	d := &fakeDaemon{gpus: []api.GPU{{ID: "GPU-b", Index: 1, Memory: 80 << 30}, {ID: "GPU-a", Index: 0, Memory: 40 << 30}, {ID: "GPU-c", Index: 3}, {ID: "GPU-d", Index: 4, Memory: 31 << 20}}}
	return &Node{
		Cluster: Cluster{Shards: 32, License: "causeway", Remote: api.RemoteAny, Each: 1 << 30}, Causewayd: d, Notes: filepath.Join(t.TempDir(), "notes"),
		Ask:      func(context.Context, uint32, string) (string, error) { return said, nil },
		Patience: 5 * time.Second,
	}, d
}

// TestProlog: what a job of a kind has, or is told.
func TestProlog(t *testing.T) {
	for _, c := range []struct {
		name, gpus, said, refused, fault string
		capped                           bool
		want                             string // GPU memory share cap remote
	}{
		{name: "shards of the second GPU", gpus: "1", said: "7|gres:shard:8|(null)|1\n", want: "GPU-b 20GiB 250 none "},
		{name: "as newer squeues say it", gpus: "0", said: "7|gres/shard:32|(null)|1\n", want: "GPU-a 40GiB 1000 none "},
		{name: "with a cap", gpus: "1", said: "7|gres:shard:1|(null)|2\n", capped: true, want: "GPU-b 2560MiB 31 3 "},
		{name: "a whole GPU, of a type", gpus: "0", said: "7|gres:gpu:h200:1|(null)|1\n", want: "GPU-a none 1000 none "},
		{name: "a whole GPU without a number", gpus: "0", said: "7|gres/gpu|(null)|1\n", want: "GPU-a none 1000 none "},
		{name: "beside others' resources", gpus: "0", said: "7|gres:nic:1,gres:shard:16|matlab:3|1\n", want: "GPU-a 20GiB 500 none "},
		{name: "others' lines", gpus: "0", said: "70|gres:shard:1|(null)|1\n7|gres:shard:16|(null)|1\n", want: "GPU-a 20GiB 500 none "},
		{name: "licences", said: "7|N/A|matlab:1,causeway@db:8|2\n", want: "any 4GiB - - any"},
		{name: "neither", said: "7|N/A|(null)|1\n"},
		{name: "two GPUs", gpus: "0,1", said: "7|gres:gpu:2|(null)|1\n", refused: "this job has 2"},
		{name: "both kinds", gpus: "0", said: "7|gres:shard:2,gres:gpu:1|(null)|1\n", refused: "not both"},
		{name: "a GPU and licences", gpus: "0", said: "7|gres:gpu:1|causeway:1|1\n", refused: "not both"},
		{name: "a part that is not told", gpus: "0", said: "7|N/A|(null)|1\n", refused: "cannot be told"},
		{name: "licences that do not divide", said: "7|N/A|causeway:3|2\n", refused: "ask for a multiple"},
		{name: "more shards than there are", gpus: "0", said: "7|gres:shard:33|(null)|1\n", fault: "33 shards of a GPU that has 32"},
		{name: "a GPU that causewayd does not have", gpus: "2", said: "7|gres:gpu:1|(null)|1\n", fault: "none of causewayd's"},
		{name: "shards of a GPU whose memory nobody tells", gpus: "3", said: "7|gres:shard:8|(null)|1\n", fault: "no part of it"},
		{name: "shards of less than a MiB", gpus: "4", said: "7|gres:shard:1|(null)|1\n", fault: "no part of it"},
		{name: "a job that Slurm does not know", gpus: "0", said: "8|gres:gpu:1|(null)|1\n", fault: "knows nothing of job 7"},
		{name: "counts that are none", gpus: "0", said: "7|gres:shard:many:x|(null)|1\n", fault: "a count of GPUs that is none"},
		{name: "licences that are none", said: "7|N/A|causeway:-1|1\n", fault: "a count of licences that is none"},
		{name: "licences beyond memory", said: "7|N/A|causeway:4294967295|1\n", want: "any 4294967295GiB - - any"},
		{name: "no nodes", said: "7|N/A|causeway:1|0\n", fault: `on "0" nodes`},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, d := newNode(t, c.said)
			n.Cluster.Capped = c.capped
			j, err := JobFrom(variables(map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": c.gpus}))
			if err != nil {
				t.Fatal(err)
			}
			err = n.Prolog(t.Context(), j)
			if c.fault != "" {
				if err == nil || !strings.Contains(err.Error(), c.fault) || d.wish != nil {
					t.Fatalf("%v, %+v", err, d.wish)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			note, found, err := readNote(n.Notes, 7)
			if err != nil || found != (c.want != "" || c.refused != "") || !strings.Contains(note.Refused, c.refused) || (note.Refused == "") != (c.refused == "") {
				t.Fatalf("note %+v, %v, %v", note, found, err)
			}
			if c.want == "" {
				if d.wish != nil {
					t.Fatalf("it wishes %+v", d.wish)
				}
				return
			}
			w := d.wish
			got := w.GPU + " " + strings.ReplaceAll(w.Memory.String(), " ", "")
			if w.Remote == "" {
				got += " " + w.Share.String() + " " + w.Cap.String() + " "
			} else {
				got += " - - " + w.Remote
			}
			if strings.ReplaceAll(got, "%", "") != c.want || w.VM != "slurm-7" || w.Owner != "1000" || w.Programs == nil || !*w.Programs {
				t.Errorf("%q of %s for %s, not %q", got, w.VM, w.Owner, c.want)
			}
			if err := w.Check(); err != nil {
				t.Errorf("causewayd would refuse it: %v", err)
			}
		})
	}
}

// TestUnasked: a job without GPUs asks neither Slurm nor causewayd, and its tasks get nothing.
func TestUnasked(t *testing.T) {
	n, d := newNode(t, "")
	n.Cluster.License = ""
	n.Ask = func(context.Context, uint32, string) (string, error) { return "", errors.New("asked") }
	v := variables(map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000"})
	j, _ := JobFrom(v)
	var out bytes.Buffer
	if err := errors.Join(n.Prolog(t.Context(), j), Task(&out, v, n.Notes, "/lib"), n.Epilog(t.Context(), j)); err != nil || out.Len() != 0 || d.released != nil {
		t.Errorf("%v, %q, %q", err, &out, d.released)
	}
}

// TestLife: prolog, task and epilog of a job, also while causewayd is away for a while; a task's
// words; what is refused by causewayd.
func TestLife(t *testing.T) {
	n, d := newNode(t, "7|gres:shard:8|(null)|1\n")
	v := map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": "0", "PATH": "/bin", "LD_LIBRARY_PATH": ""}
	j, _ := JobFrom(variables(v))
	d.away = 2
	if err := n.Prolog(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Task(&out, variables(v), n.Notes, "/lib"); err != nil {
		t.Fatal(err)
	}
	want := "export CAUSEWAY=unix:/run/causeway/slurm-7/s\nexport LD_LIBRARY_PATH=/lib\nexport PATH=/lib/bin:/bin\nexport CUDA_VISIBLE_DEVICES=0\n"
	if out.String() != want {
		t.Errorf("%q", &out)
	}
	if info, err := os.Stat(notePath(n.Notes, 7)); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the job's user cannot read the note: %v, %v", info, err)
	}
	for i := range 2 { // Slurm repeats
		d.away = 1
		if err := n.Epilog(t.Context(), j); err != nil || len(d.released) != i+1 || d.released[i] != "slurm-7/gpu0" {
			t.Errorf("%v, %q", err, d.released)
		}
		d.gone = &api.Error{Status: http.StatusNotFound, Text: "no such vGPU"}
	}
	if left, _ := os.ReadDir(n.Notes); len(left) != 0 {
		t.Errorf("left: %v", left)
	}

	d.fail = &api.Error{Status: http.StatusInsufficientStorage, Text: "no room:\n512 MiB do not fit"}
	if err := n.Prolog(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	var r Refusal
	if err := Task(&out, variables(v), n.Notes, "/lib"); !errors.As(err, &r) || !strings.HasPrefix(out.String(), "print causeway: ") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%v, %q", err, &out)
	}
	d.fail = &api.Error{Status: http.StatusInternalServerError, Text: "it broke"}
	if err := n.Prolog(t.Context(), j); err == nil {
		t.Error("a fault of the node is none")
	}
	d.gone = errors.New("it broke")
	if err := n.Epilog(t.Context(), j); err == nil {
		t.Error("a vGPU that is not given back is no fault")
	}
	n.Patience, d.away = time.Millisecond, 1000
	if err := n.Prolog(t.Context(), j); !errors.Is(err, api.ErrNotRunning) {
		t.Errorf("without causewayd: %v", err)
	}
}

func TestJobFrom(t *testing.T) {
	for _, v := range []map[string]string{
		{}, {"SLURM_JOB_ID": "x", "SLURM_JOB_UID": "1"}, {"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "-1"}, {"SLURM_JOB_ID": "4294967296", "SLURM_JOB_UID": "1"},
		{"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "1", "SLURM_JOB_GPUS": "0,,1"}, {"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "1", "SLURM_JOB_GPUS": strings.Repeat("1,", 2000) + "1"},
	} {
		if j, err := JobFrom(variables(v)); err == nil {
			t.Errorf("%v is %+v", v, j)
		}
	}
}

func TestConfig(t *testing.T) {
	var out strings.Builder
	gpus := []api.GPU{{ID: "GPU-b", Index: 1, Backend: "cuda", Name: "H200"}, {ID: "GPU-a", Index: 0, Backend: "cuda", Name: "H200"}}
	if err := Config(&out, "n1", 32, gpus); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"NodeName=n1 Gres=gpu:2,shard:64  #", "Name=gpu File=/dev/nvidia0  # H200, GPU-a\nNodeName=n1 Name=gpu File=/dev/nvidia1  # H200, GPU-b", "Name=shard Count=64\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("no %q in\n%s", line, &out)
		}
	}
	if Config(&out, "n1", 0, gpus) == nil || Config(&out, "n1", 32, nil) == nil {
		t.Error("no shards, or no GPUs")
	}
}

// FuzzRequest: whatever squeue prints, a wish that comes of it is one that causewayd takes, for
// this job, within the GPU.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{"7|gres:shard:8|(null)|1\n", "7|gres/gpu:h200:1|causeway:4|2\n", "7|gres:gpu|causeway@x:4294967295|1", "7|N/A|N/A|1\n7|gres:shard:9|x|1"} {
		f.Add(s, 0)
		f.Add(s, -1)
	}
	c := Cluster{Shards: 32, License: "causeway", Remote: api.RemoteAny, Each: limit.Memory(1 << 30)}
	gpus := []api.GPU{{ID: "GPU-a", Memory: 40 << 30}}
	f.Fuzz(func(t *testing.T, text string, gpu int) {
		j := Job{ID: 7, UID: 1000}
		if gpu >= 0 {
			j.GPUs = []int{gpu}
		}
		r, err := parseRequest(text, 7, c.License)
		if err != nil || len(j.GPUs) == 0 && r.licenses == 0 {
			return
		}
		w, err := c.wish(j, r, gpus)
		if err != nil {
			return
		}
		if err := w.Check(); err != nil || w.VM != "slurm-7" || w.Owner != "1000" {
			t.Fatalf("%q: %+v: %v", text, w, err)
		}
		if w.Remote == "" && (w.GPU != "GPU-a" || uint64(*w.Memory) > gpus[0].Memory || *w.Share > shareOfGPU) {
			t.Fatalf("%q: %+v", text, w)
		}
	})
}

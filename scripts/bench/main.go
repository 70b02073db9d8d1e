// Command bench runs the measuring program natively and through Causeway in one go and prints one
// line per metric: name, value, unit, baseline, ratio, goal. Ratios compare within this run;
// absolute times are the machine's mood.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

type options struct {
	causeway, bench, gpu string
	native               string
	maxCopy, file, idle  int
}

func main() {
	var o options
	dir := filepath.Dir(os.Args[0])
	flag.StringVar(&o.causeway, "causeway", filepath.Join(dir, "causeway"), "the causeway binary")
	flag.StringVar(&o.bench, "bench", filepath.Join(dir, "bench"), "the measuring program (scripts/bench/probe/bench.c)")
	flag.StringVar(&o.gpu, "gpu", "auto", "GPU to forward to: soft, auto or an index")
	flag.StringVar(&o.native, "native", "auto", "measure the bare driver too, the baseline of a real GPU: yes, no, or auto (if there is one)")
	flag.IntVar(&o.maxCopy, "max-copy", 64, "largest copy in MiB")
	flag.IntVar(&o.file, "file", 0, "MiB of a file in the page cache to load to the GPU; 0: skip")
	flag.IntVar(&o.idle, "idle", 10, "seconds to watch an idle session, 0: skip")
	flag.Parse()
	if err := run(o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(o options, w io.Writer) error {
	modes := o.modes()
	machine, err := measure(o.bench, "machine")
	if err != nil {
		return err
	}
	native, err := measureNative(o, modes)
	if err != nil {
		return err
	}
	forwarded := results{}
	prefix := []string{o.causeway, "run", "--gpu", o.gpu, "--", o.bench}
	for _, args := range modes {
		if err := forwarded.add(append(append([]string{}, prefix...), args...)...); err != nil {
			return err
		}
	}
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "name\tvalue\tunit\tbaseline\tratio\tgoal")
	for _, name := range machine.order {
		fmt.Fprintf(t, "%s\t%.3f\t%s\t-\t-\t-\n", name, machine.value[name], machine.unit[name])
	}
	for _, name := range forwarded.order {
		row(t, name, forwarded, native, machine)
	}
	if o.idle > 0 {
		share, rss, err := idleCost(o, prefix)
		if err != nil {
			return err
		}
		fmt.Fprintf(t, "idle_cpu\t%.4f\t%% of a core\t-\t-\t< 0.1\n", share*100)
		fmt.Fprintf(t, "idle_rss_largest_process\t%.1f\tMiB\t-\t-\t-\n", float64(rss)/(1<<20))
		share, rss, err = deviceCost(o)
		if err != nil {
			return err
		}
		fmt.Fprintf(t, "device_cpu\t%.4f\t%% of a core\t-\t-\t< 0.1\n", share*100)
		fmt.Fprintf(t, "device_rss\t%.1f\tMiB\t-\t-\t< 40\n", float64(rss)/(1<<20))
	}
	return nil
}

// modes are the runs of the measuring program that a native and a forwarded side are compared by.
func (o options) modes() [][]string {
	m := [][]string{{"calls"}, {"copies", strconv.Itoa(o.maxCopy << 20)}}
	if o.gpu != "soft" { // whose kernels and copies share the CPU
		m = append(m, []string{"overlap"})
	}
	if o.file > 0 {
		m = append(m, []string{"file", strconv.Itoa(o.file << 20)})
	}
	return m
}

// measureNative measures the bare driver. Where no GPU is promised its absence is no error.
func measureNative(o options, modes [][]string) (results, error) {
	var r results
	if o.native == "no" || o.gpu == "soft" && o.native == "auto" {
		return r, nil
	}
	for _, args := range modes {
		if err := r.add(append([]string{o.bench}, args...)...); err != nil {
			if o.native == "auto" && len(r.order) == 0 {
				fmt.Fprintln(os.Stderr, "bench: no GPU of this machine's own, so no native baseline")
				return results{}, nil
			}
			return r, err
		}
	}
	return r, nil
}

// deviceCost watches a device process that waits for a VM.
func deviceCost(o options) (share float64, rss int64, err error) {
	dir, err := os.MkdirTemp("", "causeway-bench")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "vm.sock")
	c := exec.Command(o.causeway, "device", "--socket", socket, "--gpu", o.gpu)
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		return 0, 0, err
	}
	defer func() {
		_ = c.Process.Signal(os.Interrupt)
		_ = c.Wait()
	}()
	for range 100 {
		if _, err = os.Stat(socket); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("causeway device never listened: %w", err)
	}
	time.Sleep(time.Second)
	before, start := cpuOfTree(c.Process.Pid), time.Now()
	time.Sleep(time.Duration(o.idle) * time.Second)
	used := cpuOfTree(c.Process.Pid) - before
	// The worker that waits ready is another process.
	return used.Seconds() / time.Since(start).Seconds(), rssOf(c.Process.Pid), nil
}

// goals of the project's issues: a limit on the value without a native baseline, on the ratio with
// one.
var goals = map[string]string{
	"sync_idle":   "<= 1.5 us",
	"launch_call": "<= 0.4 us",
}

func row(w io.Writer, name string, forwarded, native, machine results) {
	base, kind := native.value[name], "native"
	if base == 0 && name == "sync_idle" {
		base, kind = machine.value["machine_shm_pingpong"], "shm ping-pong"
	}
	v := forwarded.value[name]
	goal := goals[name]
	if goal == "" {
		goal = "-"
	}
	if base == 0 {
		fmt.Fprintf(w, "%s\t%.3f\t%s\t-\t-\t%s\n", name, v, forwarded.unit[name], goal)
		return
	}
	ratio := v / base
	if strings.HasPrefix(name, "copy_") {
		ratio = base / v // throughput: more is better
		goal = copyGoal(name)
	} else if strings.HasPrefix(name, "overlap_") {
		goal = ">= 0.97"
	}
	fmt.Fprintf(w, "%s\t%.3f\t%s\t%.3f (%s)\t%.2f\t%s\n", name, v, forwarded.unit[name], base, kind, ratio, goal)
}

// copyGoal is the least throughput over native's that the project aims at.
func copyGoal(name string) string {
	size := bytesOf(name)
	switch {
	case size <= 64<<10:
		return ">= 0.83" // 1.2 of the time
	case strings.HasPrefix(name, "copy_file"):
		return ">= 1.00"
	case size < 16<<20:
		return "-"
	case strings.HasPrefix(name, "copy_pinned"):
		return ">= 0.99"
	}
	return ">= 2.00"
}

func bytesOf(name string) int {
	n, _ := strconv.Atoi(name[strings.LastIndexByte(name, '_')+1:])
	return n
}

// results are the metrics of one or more runs of the measuring program, in the order printed.
type results struct {
	order []string
	value map[string]float64
	unit  map[string]string
}

func measure(cmd ...string) (results, error) {
	var r results
	return r, r.add(cmd...)
}

func (r *results) add(cmd ...string) error {
	if r.value == nil {
		r.value, r.unit = map[string]float64{}, map[string]string{}
	}
	fmt.Fprintln(os.Stderr, "bench: running", strings.Join(cmd, " "))
	c := exec.Command(cmd[0], cmd[1:]...)
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd, " "), err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] == "#" {
			continue
		}
		v, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			return fmt.Errorf("%s printed %q", cmd[0], line)
		}
		r.order = append(r.order, f[0])
		r.value[f[0]], r.unit[f[0]] = v, f[2]
	}
	return nil
}

// idleCost starts a session that does nothing and watches every process of it: the share of a core
// that they use together, and the largest resident set among Causeway's own.
func idleCost(o options, prefix []string) (share float64, rss int64, err error) {
	fmt.Fprintf(os.Stderr, "bench: watching an idle session for %d s\n", o.idle)
	c := exec.Command(prefix[0], append(prefix[1:], "idle", strconv.Itoa(o.idle+3))...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	if err := c.Start(); err != nil {
		return 0, 0, err
	}
	defer func() {
		if e := c.Wait(); err == nil {
			err = e
		}
	}()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "idle_ready") {
			break
		}
	}
	time.Sleep(time.Second) // both sides fall asleep
	before, start := cpuOfTree(c.Process.Pid), time.Now()
	time.Sleep(time.Duration(o.idle) * time.Second)
	used := cpuOfTree(c.Process.Pid) - before
	rss = rssOfTree(c.Process.Pid)
	return used.Seconds() / time.Since(start).Seconds(), rss, nil
}

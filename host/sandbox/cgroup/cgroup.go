package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Root is where control groups are mounted.
const Root = "/sys/fs/cgroup"

// Limits bound a group; zero: unlimited.
type Limits struct {
	CPUWeight uint32 // relative to other groups under load, 1 to 10000; the kernel's default is 100
	CPU       uint32 // most per cent of one processor: 250 is two and a half
	Memory    uint64 // bytes of the host's memory, not counting the guest's RAM, which QEMU has
	// Bytes from which on the group is slowed down and its caches are taken first; version 2 only.
	High      uint64
	Processes uint32 // and threads
}

// Check says what is wrong with limits.
func (l Limits) Check() error {
	switch {
	case l.CPUWeight > 10000:
		return fmt.Errorf("CPU weight %d: use 1 to 10000", l.CPUWeight)
	case l.Memory != 0 && l.Memory < 64<<20:
		return fmt.Errorf("%d bytes of host memory are too little for a worker: use at least 64 MiB", l.Memory)
	case l.Processes != 0 && l.Processes < 64:
		return fmt.Errorf("%d processes and threads are too few for a worker: use at least 64", l.Processes)
	}
	return nil
}

// Group is a control group.
type Group struct {
	dirs []dir // one in version 2, one for each controller in version 1
}

// dir is a group in one tree.
type dir struct{ root, path string }

// controller is what one controller needs to be told, by version.
type setting struct {
	controller string
	file       string
	value      string
}

const period = 100000 // µs

// settings2 are the files of version 2 (Documentation/admin-guide/cgroup-v2.rst).
func settings2(l Limits) []setting {
	var s []setting
	if l.CPUWeight != 0 {
		s = append(s, setting{"cpu", "cpu.weight", strconv.FormatUint(uint64(l.CPUWeight), 10)})
	}
	if l.CPU != 0 {
		s = append(s, setting{"cpu", "cpu.max", fmt.Sprintf("%d %d", uint64(l.CPU)*period/100, period)})
	}
	if l.Memory != 0 {
		s = append(s, setting{"memory", "memory.max", strconv.FormatUint(l.Memory, 10)}, setting{"memory", "memory.swap.max", "0"})
	}
	if l.High != 0 {
		s = append(s, setting{"memory", "memory.high", strconv.FormatUint(l.High, 10)})
	}
	if l.Processes != 0 {
		s = append(s, setting{"pids", "pids.max", strconv.FormatUint(uint64(l.Processes), 10)})
	}
	return s
}

// settings1 are those of version 1. Shares of 1024 are the weight of 100.
func settings1(l Limits) []setting {
	var s []setting
	if l.CPUWeight != 0 {
		s = append(s, setting{"cpu", "cpu.shares", strconv.FormatUint(max(2, uint64(l.CPUWeight)*1024/100), 10)})
	}
	if l.CPU != 0 {
		s = append(s, setting{"cpu", "cpu.cfs_quota_us", strconv.FormatUint(uint64(l.CPU)*period/100, 10)})
	}
	if l.Memory != 0 {
		s = append(s, setting{"memory", "memory.limit_in_bytes", strconv.FormatUint(l.Memory, 10)})
	}
	if l.Processes != 0 {
		s = append(s, setting{"pids", "pids.max", strconv.FormatUint(uint64(l.Processes), 10)})
	}
	return s
}

// Make makes the group path below root (Root but for tests), puts this process there, and limits
// it. What cannot be had is in the error; the group is not nil if anything could.
func Make(root, path string, l Limits) (*Group, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	if !filepath.IsLocal(path) || path == "." {
		return nil, fmt.Errorf("control group %q is no path below %s", path, root)
	}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return make2(root, path, l)
	}
	return make1(root, path, l)
}

func make2(root, path string, l Limits) (*Group, error) {
	at := filepath.Join(root, path)
	settings := settings2(l)
	var errs []error
	errs = append(errs, enable(root, filepath.Dir(path), settings))
	if err := os.MkdirAll(at, 0o755); err != nil {
		return nil, errors.Join(append(errs, fmt.Errorf("control group: %w", err))...)
	}
	g := &Group{dirs: []dir{{root, at}}}
	for _, s := range settings {
		errs = append(errs, put(at, s.file, s.value))
	}
	if err := g.enter(); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, errors.Join(errs...)
}

// enable passes the controllers on to children, from root down to path. One that a parent has not
// fails for all its descendants: the first failure is told.
func enable(root, path string, settings []setting) error {
	wanted := map[string]bool{}
	for _, s := range settings {
		wanted[s.controller] = true
	}
	at := root
	for _, part := range append([]string{""}, strings.Split(path, "/")...) {
		at = filepath.Join(at, part)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return fmt.Errorf("control group: %w", err)
		}
		for c := range wanted {
			if err := put(at, "cgroup.subtree_control", "+"+c); err != nil {
				return err
			}
		}
		if path == "." {
			break
		}
	}
	return nil
}

func make1(root, path string, l Limits) (*Group, error) {
	g := new(Group)
	var errs []error
	made := map[string]bool{}
	for _, s := range settings1(l) {
		tree := filepath.Join(root, s.controller)
		at := filepath.Join(tree, path)
		if !made[s.controller] {
			if _, err := os.Stat(filepath.Join(tree, "cgroup.procs")); err != nil {
				errs = append(errs, fmt.Errorf("no controller %s: %w", s.controller, err))
				continue
			}
			if err := os.MkdirAll(at, 0o755); err != nil {
				errs = append(errs, fmt.Errorf("control group: %w", err))
				continue
			}
			made[s.controller] = true
			g.dirs = append(g.dirs, dir{tree, at})
		}
		errs = append(errs, put(at, s.file, s.value))
	}
	if len(g.dirs) == 0 {
		return nil, errors.Join(errs...)
	}
	if err := g.enter(); err != nil {
		return nil, errors.Join(append(errs, err, g.Close())...)
	}
	return g, errors.Join(errs...)
}

// put writes one file of a group.
func put(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("control group: %s=%s: %w", filepath.Join(dir, file), value, err)
	}
	return nil
}

// enter puts this process, all its threads, into the group.
func (g *Group) enter() error {
	for _, d := range g.dirs {
		if err := put(d.path, "cgroup.procs", "0"); err != nil {
			return err
		}
	}
	return nil
}

// gone is how long the kernel may take to notice that the last process of a group ended.
const gone = 500 * time.Millisecond

// Close moves this process out and removes the group, and the groups above that nothing else needs.
// One that still has processes stays, and is an error.
func (g *Group) Close() error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, d := range g.dirs {
		if err := put(d.root, "cgroup.procs", "0"); err != nil {
			// Not ours, where root delegated a part.
			// If that fails too, removing says it.
			_ = put(filepath.Dir(d.path), "cgroup.procs", "0")
		}
		var err error
		for end := time.Now().Add(gone); ; time.Sleep(5 * time.Millisecond) {
			if err = unix.Rmdir(d.path); err == nil || !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove control group %s: %w", d.path, err))
			continue
		}
		for up := filepath.Dir(d.path); up != d.root && unix.Rmdir(up) == nil; up = filepath.Dir(up) {
		}
	}
	return errors.Join(errs...)
}

// Folders are the group's, for those who show it.
func (g *Group) Folders() (out []string) {
	if g == nil {
		return nil
	}
	for _, d := range g.dirs {
		out = append(out, d.path)
	}
	return out
}

// Processes are those in the group.
func (g *Group) Processes() ([]int, error) {
	if g == nil || len(g.dirs) == 0 {
		return nil, nil
	}
	f, err := os.Open(filepath.Join(g.dirs[0].path, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []int
	for sc := bufio.NewScanner(f); sc.Scan(); {
		n, err := strconv.Atoi(sc.Text())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		out = append(out, n)
	}
	return out, nil
}

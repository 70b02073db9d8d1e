package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// process is what one process of ours is and costs.
type process struct {
	pid  int
	role string // daemon, scheduler, device, worker...
	// bytes; pss is the first two's share of what is mapped, less shared guest memory
	pss, anon, file, private int64
	shmem                    int64
	// Page tables and the threads' stacks in the kernel, which no process's own figures show.
	kernel       int64
	threads, fds int
	cpu          time.Duration
	wakeups      int64 // times that a thread slept and was woken
}

// ours finds all processes that run a program, whoever started them, by the file's identity:
// sandboxes know it by other names.
func ours(program string) ([]process, error) {
	want, err := os.Stat(program)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var list []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		exe, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || !os.SameFile(want, exe) {
			continue
		}
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		role := "starting"
		if args := bytes.Split(line, []byte{0}); len(args) > 1 {
			role = string(args[1])
		}
		list = append(list, process{pid: pid, role: role})
	}
	return list, nil
}

// measureMemory reads smaps_rollup(5), which walks the process's pages.
func (p *process) measureMemory() {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", p.pid))
	if err != nil {
		return
	}
	defer f.Close()
	p.pss, p.private = 0, 0
	for in := bufio.NewScanner(f); in.Scan(); {
		fields := strings.Fields(in.Text())
		if len(fields) < 3 {
			continue
		}
		kib, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "Pss_Anon:":
			p.anon = kib << 10
		case "Pss_File:":
			p.file = kib << 10
		case "Pss_Shmem:":
			p.shmem = kib << 10
		case "Private_Dirty:":
			p.private = kib << 10
		}
	}
	p.pss = p.anon + p.file
	p.threads, p.fds = count(p.pid, "task"), count(p.pid, "fd")
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	p.kernel = int64(p.threads)*kernelStack + number(string(status), "\nVmPTE:\t")<<10
}

// kernelStack is THREAD_SIZE of x86_64.
const kernelStack = 16 << 10

// number is the decimal number after a prefix; 0 without.
func number(text, prefix string) int64 {
	_, rest, _ := strings.Cut(text, prefix)
	line, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(line), " kB"), 10, 64)
	return n
}

func count(pid int, what string) int {
	list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/%s", pid, what))
	return len(list)
}

// measureWork reads CPU time to the nanosecond and how often its threads slept.
func (p *process) measureWork() {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.pid))
	p.cpu, p.wakeups = 0, 0
	for _, t := range tasks {
		b, _ := os.ReadFile(filepath.Join(t, "schedstat"))
		ns, _, _ := strings.Cut(string(b), " ")
		n, _ := strconv.ParseInt(ns, 10, 64)
		p.cpu += time.Duration(n)
		b, _ = os.ReadFile(filepath.Join(t, "status"))
		p.wakeups += number(string(b), "\nvoluntary_ctxt_switches:\t")
	}
}

// files lists what is below a folder.
func files(dir string) []string {
	var list []string
	_ = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() && filepath.Ext(path) != ".log" && !strings.HasSuffix(path, ".log.1") {
			list = append(list, path)
		}
		return nil
	})
	return list
}

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tree lists a process and all its descendants.
func tree(root int) []int {
	children := map[int][]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := statFields(pid); len(f) > 1 {
			ppid, _ := strconv.Atoi(f[1])
			children[ppid] = append(children[ppid], pid)
		}
	}
	list := []int{root}
	for i := 0; i < len(list); i++ {
		list = append(list, children[list[i]]...)
	}
	return list
}

// statFields are the fields of /proc/PID/stat after the command name, state first (proc(5)).
func statFields(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	s := string(b)
	return strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
}

// cpuOfTree sums run time by the scheduler's nanosecond count, all threads: /proc/PID/stat's 10 ms
// ticks are too coarse for idleness.
func cpuOfTree(root int) time.Duration {
	var sum time.Duration
	for _, pid := range tree(root) {
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		for _, t := range tasks {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, t.Name()))
			if err != nil {
				continue
			}
			ns, _, _ := strings.Cut(string(b), " ")
			n, _ := strconv.ParseInt(ns, 10, 64)
			sum += time.Duration(n)
		}
	}
	return sum
}

// rssOfTree is the largest resident set of a process and its descendants, in bytes.
func rssOfTree(root int) int64 {
	var largest int64
	for _, pid := range tree(root) {
		largest = max(largest, rssOf(pid))
	}
	return largest
}

// rssOf is the resident set of one process, in bytes.
func rssOf(pid int) int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

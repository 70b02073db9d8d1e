package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// retired are words that had several meanings, or were home-made, and where they are not used any
// more: docs/ARCHITECTURE.md, "Words", says what has taken their place.
var retired = []struct {
	word    *regexp.Regexp
	below   []string // nil: everywhere
	but     string   // what contains it and stays
	instead string
}{
	{regexp.MustCompile(`(?i)\b(crew|hub|seat)s?\b`), nil, "", "submitters, a server, a slot"},
	{regexp.MustCompile(`(?i)\w*lease\w*`), []string{"guest", "remote/shm", "vhostuser", "virtio"}, "max_leases=", "a loan; a lease is between hosts"},
	{regexp.MustCompile(`\w*([Ll]eased\b|Leased[A-Z]|leased[A-Z])\w*`), []string{"host/worker"}, `= "leased"`, "virtiofs, or lent; a lease is between hosts"},
	{regexp.MustCompile(`(?i)\bgates?\b`), []string{"host/daemon"}, "", "a lock; a gate is the worker's"},
	{regexp.MustCompile(`(?i)\bviews?\b`), []string{"host/fleet"}, "", "an overview; a view is a table of memory"},
	{regexp.MustCompile(`(?i)\bextents?\b`), []string{"host/driver/cuda/arena"}, "", "a chunk; an extent is a request"},
}

// judgeWords finds retired words in what was written by hand.
func judgeWords(name string, text []byte) []violation {
	if below(name, "scripts/lint") || isGenerated(text) {
		return nil
	}
	var found []violation
	for _, r := range retired {
		if !livesBelow(name, r.below) {
			continue
		}
		for _, at := range r.word.FindAllIndex(text, -1) {
			word := string(text[at[0]:at[1]])
			if low := strings.ToLower(word); strings.Contains(low, "release") || strings.Contains(low, "please") {
				continue
			}
			if from := text[max(0, at[0]-len(r.but)):min(len(text), at[1]+len(r.but))]; r.but != "" && bytes.Contains(from, []byte(r.but)) {
				continue
			}
			line := 1 + bytes.Count(text[:at[0]], []byte("\n"))
			found = append(found, violation{name, line, fmt.Sprintf("%q is given up here: %s", word, r.instead)})
		}
	}
	return found
}

func livesBelow(name string, dirs []string) bool {
	for _, d := range dirs {
		if below(name, d) {
			return true
		}
	}
	return dirs == nil
}

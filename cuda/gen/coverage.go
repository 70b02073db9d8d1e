package main

import (
	"slices"
	"strings"

	"causeway/cuda/idl"
)

// coverage is docs/COVERAGE.md: what the guest library does with every exported symbol.
func coverage(w *writer, f *idl.File) {
	w.f("<!-- %s -->", notice)
	w.f("# Coverage of the driver API\n")
	w.f("Every `cu*` symbol that the library of driver 580 (CUDA 13.0) exports is exported by Causeway's `libcuda.so.1`, with its own")
	w.f("prototype. *Implemented* entries do what the documentation says, with the worker's help where they need it; *local* ones are")
	w.f("answered inside the guest process. *Refused* ones return `CUDA_ERROR_NOT_SUPPORTED`, and name themselves once on stderr with")
	w.f("`CAUSEWAY_LOG=info`. Written from `cuda/api/entries_*.idl`; names with `/ptds` or `/ptsz` have a per-thread twin.\n")
	w.f("| theme | implemented | local | refused |\n| --- | ---: | ---: | ---: |")
	var total count
	for _, t := range f.Themes {
		c := counts(f, t.Name)
		total.add(c)
		w.f("| %s | %d | %d | %d |", t.Title, c.hand, c.local, c.refused)
	}
	w.f("| **symbols (twins included): %d** | **%d** | **%d** | **%d** |\n", total.hand+total.local+total.refused, total.hand, total.local, total.refused)
	attributeCoverage(w)
	for _, t := range f.Themes {
		w.f("## %s\n", t.Title)
		list(w, "Implemented", names(f, t.Name, idl.ModeHand, ""))
		list(w, "Local", names(f, t.Name, idl.ModeLocal, ""))
		for _, reason := range reasons(f, t.Name) {
			list(w, "Refused ("+reason+")", names(f, t.Name, idl.ModeRefuse, reason))
		}
	}
	coverageTables(w)
}

// count is in exported symbols.
type count struct{ hand, local, refused int }

func (c *count) add(d count) {
	c.hand += d.hand
	c.local += d.local
	c.refused += d.refused
}

func counts(f *idl.File, theme string) (c count) {
	for _, e := range f.Entries {
		if e.Theme != theme {
			continue
		}
		n := len(e.Symbols())
		switch e.Mode {
		case idl.ModeHand:
			c.hand += n
		case idl.ModeLocal:
			c.local += n
		case idl.ModeRefuse:
			c.refused += n
		}
	}
	return c
}

func names(f *idl.File, theme string, mode idl.EntryMode, reason string) []string {
	var out []string
	for _, e := range f.Entries {
		if e.Theme == theme && e.Mode == mode && (reason == "" || e.Reason == reason) {
			n := e.Symbol
			if e.Twin != "" {
				n += "/" + e.Twin
			}
			out = append(out, "`"+n+"`")
		}
	}
	return out
}

func reasons(f *idl.File, theme string) []string {
	var out []string
	for _, e := range f.Entries {
		if e.Theme == theme && e.Mode == idl.ModeRefuse && !slices.Contains(out, e.Reason) {
			out = append(out, e.Reason)
		}
	}
	return out
}

func list(w *writer, head string, names []string) {
	if len(names) > 0 {
		w.f("%s: %s.\n", head, strings.Join(names, ", "))
	}
}

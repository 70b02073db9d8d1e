package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// partNames are the groups of the table, in order.
var partNames = []struct{ part, name string }{
	{"1", "PyTorch"},
	{"2", "Libraries, CuPy, JAX, Triton, Numba, bindings"},
	{"3", "C++ by nvcc 13.0"},
	{"4", "NCCL, two GPUs"},
	{"5", "nvidia-smi and NVML"},
	{"6", "Old and new runtimes"},
}

// table is what a person reads after a run: what is not the same, with its reason, and a line for
// what is.
func table(results []result) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 2, 0, 2, ' ', 0)
	fmt.Fprintln(t, "row\tnative\tcauseway\tresult\treason")
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", r.row.name, cell(r.native), cell(r.forwarded), r.verdict, r.reason)
	}
	_ = t.Flush()
	return b.String()
}

func cell(o outcome) string {
	if !o.Ran {
		return "-"
	}
	return fmt.Sprintf("%d %.1fs", o.Status, o.Seconds)
}

// ended is how a run ended; times are left to the benchmarks, for rows run side by side.
func ended(o outcome) string {
	switch {
	case !o.Ran:
		return "-"
	case o.Status == 0:
		return "ok"
	case o.Status == 124:
		return "no end"
	}
	return fmt.Sprintf("status %d", o.Status)
}

// summary counts verdicts; good means that nothing failed without a declared reason and something
// ran.
func summary(results []result) (good bool, line string) {
	count := map[verdict]int{}
	good = true
	ran := false
	for _, r := range results {
		count[r.verdict]++
		if r.verdict != notRun {
			ran = true
			good = good && r.verdict.good()
		}
	}
	var parts []string
	for _, v := range []verdict{same, within, gapped, nativeFails, differs, unrepeatable, fails, notRun} {
		if count[v] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[v], v))
		}
	}
	return good && ran, fmt.Sprintf("compat: %d rows: %s", len(results), strings.Join(parts, ", "))
}

// markdown is docs/COMPATIBILITY.md.
func markdown(results []result, machine []string) string {
	var b strings.Builder
	b.WriteString(`# Compatibility

Made by ` + "`causeway-compat --markdown docs/COMPATIBILITY.md`" + ` on a machine with a GPU: each program of ` + "`scripts/compat`" + ` and
` + "`guest/tests`" + ` runs natively and under ` + "`causeway run`" + `, unmodified, and what they print is compared.
*same* means equal in every byte, checksums of results included; *within tolerance* is for programs whose native runs differ
from each other or whose kernels are chosen by timing, and the tolerance is the program's own declaration; *fails natively*
means that the same program does not work on the bare driver of that machine either.

`)
	for _, line := range machine {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	_, line := summary(results)
	fmt.Fprintf(&b, "\n%s.\n", strings.TrimPrefix(line, "compat: "))
	for _, p := range partNames {
		rows := slices.DeleteFunc(slices.Clone(results), func(r result) bool { return r.row.part != p.part })
		if len(rows) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n| row | what | native | Causeway | result | reason |\n|---|---|---|---|---|---|\n", p.name)
		for _, r := range rows {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.row.name, escape(about(r.row)), ended(r.native), ended(r.forwarded), shown(r), escape(r.reason))
		}
	}
	b.WriteString(besidePeers(results))
	return b.String()
}

// about is a row's title with what tells it from the others of its file.
func about(r *row) string {
	if len(r.args) == 0 {
		return r.title
	}
	return r.title + ": " + strings.Join(r.args, " ")
}

// shown adds the tolerance to a verdict that used one.
func shown(r result) string {
	if r.verdict == within && r.row.compare.kind == "numbers" {
		return fmt.Sprintf("within %g", r.row.compare.rel)
	}
	if r.verdict == within {
		return "same status"
	}
	return string(r.verdict)
}

func escape(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;").Replace(s)
}

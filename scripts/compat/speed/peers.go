package main

import (
	"fmt"
	"strings"
)

// peers are comparable figures of other projects, by the beginning of a measure's name: published
// by them (smolvm), or measured beside a bare driver on one H200 (Lupine 7fbd364 over loopback).
// Workloads are alike, not equal.
var peers = []struct{ measure, figure string }{
	{"torch_resnet50_step", "Lupine: fails (bf16 GEMM)"},
	{"torch_gpt", "Lupine: fails (bf16 GEMM)"},
	{"lora", "smolvm: 1720 against 2507 tokens/s (69 %), QLoRA of a 7B model"},
	{"torch_mlp_step", "Lupine: 2.37 against 2.36 ms"},
	{"torch_tiny_op", "Lupine: 11.4 against 10.8 us"},
	{"graph_80", "Lupine: 221 against 175 us"},
	{"decode_0.5B_b1_eager", "smolvm, vLLM 0.5B batch 1: 78 against 71 ms (91 %); Lupine: fails"},
	{"decode_0.5B_b1_graphed", "smolvm, vLLM 0.5B batch 1: 35 against 28 ms (80 %)"},
	{"decode", "smolvm: 95 % (OPT-1.3B), 80 % (llama.cpp), 74 % (OPT-125M in a VM)"},
	{"weights", "smolvm: 88 to 99 s against 12 s until a model server answers; 11.8 GB/s to the GPU"},
	{"torch_first_op_after_import", "Lupine: 0.44 against 0.43 s"},
}

// peer is the figure beside a measure, or empty.
func peer(measure string) string {
	for _, p := range peers {
		if strings.HasPrefix(measure, p.measure) {
			return p.figure
		}
	}
	return ""
}

// markdown is a table of everything measured.
func markdown(all []*pairs) string {
	var b strings.Builder
	b.WriteString("| measure | Causeway | unit | native | ratio | goal | peers |\n|---|---|---|---|---|---|---|\n")
	for _, p := range all {
		for _, l := range p.lines() {
			f := strings.Fields(l)
			fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(f, " | "), peer(f[0]))
		}
	}
	return b.String()
}

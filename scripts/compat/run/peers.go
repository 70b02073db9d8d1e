package main

import (
	"fmt"
	"regexp"
	"strings"
)

// peers are features that other open projects were compared by, what those projects have (read in
// the code of smolvm a5df5001 and Lupine 7fbd364, or run beside a bare driver), and the rows that
// show ours.
var peers = []struct{ feature, smolvm, lupine, rows string }{
	{"stock binaries, static runtime", "slow path", "yes", `static/`},
	{"PyTorch training, bf16", "through its runtime shims", "fails (bf16 GEMM)", `^(resnet|gpt_)`},
	{"decoding of transformers models", "74 to 95 % of native speed", "fails (bf16 GEMM)", `^decode_`},
	{"CUDA graphs: capture and replay", "yes", "yes", `^(graphs|graphed_callables|cupy_graph)$`},
	{"graphs built by nodes", "no", "yes", `/graph|conditional`},
	{"torch.compile, Triton", "yes", "unstated", `^(compile_|triton_)`},
	{"TMA descriptors", "unstated", "unstated", `^triton_tma`},
	{"virtual memory (expandable segments)", "pipelined below 85 % of memory", "yes", `^expandable|/vmm$`},
	{"export of allocations, IPC", "emulated", "unstated", `^processes$|ipc`},
	{"managed memory", "refused", "paging by SIGSEGV", `managed|^numba_rows$`},
	{"textures, surfaces, arrays", "refused", "yes", `texture|surface|array|mipmap`},
	{"cooperative launch, cluster launch", "refused", "yes", `cooperative|clusters`},
	{"host functions in libcuda", "refused", "yes", `hostfunc|callback`},
	{"NCCL over two GPUs", "claimed, no numbers", "unstated", `nccl|^one_process$|^distributed$`},
	{"JAX with its own preallocation", "unstated", "unstated", `^jax_`},
	{"nvidia-smi unmodified", "31 NVML calls", "63 NVML calls", `^(smi_|pynvml)`},
}

// besidePeers counts, for each feature, how many of its rows work.
func besidePeers(results []result) string {
	var b strings.Builder
	b.WriteString("\n## Beside peers\n\n| feature | smolvm | Lupine | Causeway: rows that agree with native |\n|---|---|---|---|\n")
	for _, p := range peers {
		match := regexp.MustCompile(p.rows)
		ran, agree := 0, 0
		for _, r := range results {
			if !match.MatchString(r.row.name) || r.verdict == notRun {
				continue
			}
			ran++
			if r.verdict == same || r.verdict == within {
				agree++
			}
		}
		ours := "not run"
		if ran > 0 {
			ours = fmt.Sprintf("%d of %d", agree, ran)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", p.feature, p.smolvm, p.lupine, ours)
	}
	return b.String()
}

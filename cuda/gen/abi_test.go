package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"causeway/cuda/idl"
)

// layouts are the structs of cuda_abi.h whose size and fields are compared with the public headers;
// fields by path.
var layouts = []struct {
	name   string
	fields string
}{
	{"CUuuid", "bytes"},
	{"CUipcMemHandle", "reserved"},
	{"CUipcEventHandle", "reserved"},
	{"CUdevprop", "maxThreadsPerBlock maxThreadsDim maxGridSize sharedMemPerBlock totalConstantMemory SIMDWidth memPitch regsPerBlock clockRate textureAlign"},
	{"CUexecAffinityParam", "type param.smCount.val"},
	{"CUctxCreateParams", "execAffinityParams numExecAffinityParams cigParams"},
	{"CUmemLocation", "type id"},
	{"CUDA_MEMCPY2D", "srcXInBytes srcY srcMemoryType srcHost srcDevice srcArray srcPitch dstXInBytes dstY dstMemoryType dstHost dstDevice dstArray dstPitch WidthInBytes Height"},
	{"CUDA_MEMCPY3D", "srcXInBytes srcY srcZ srcLOD srcMemoryType srcHost srcDevice srcArray reserved0 srcPitch srcHeight dstXInBytes dstY dstZ dstLOD dstMemoryType dstHost dstDevice dstArray reserved1 dstPitch dstHeight WidthInBytes Height Depth"},
	{"CUDA_MEMCPY3D_PEER", "srcContext srcPitch dstXInBytes dstContext dstPitch Depth"},
	{"CUlaunchConfig", "gridDimX gridDimY gridDimZ blockDimX blockDimY blockDimZ sharedMemBytes hStream attrs numAttrs"},
	{"CUlaunchAttribute", "id value value.cooperative value.clusterDim.x value.clusterDim.z value.programmaticEvent.event value.programmaticEvent.flags value.priority value.launchCompletionEvent.event value.launchCompletionEvent.flags"},
	{"CUstreamBatchMemOpParams", "operation pad"},
	{"CUasyncNotificationInfo", "type info.overBudget.bytesOverBudget"},
	{"CUDA_ARRAY3D_DESCRIPTOR", "Width Height Depth Format NumChannels Flags"},
	{"CUDA_ARRAY_DESCRIPTOR", "Width Height Format NumChannels"},
	{"CUDA_ARRAY_SPARSE_PROPERTIES", ""},
	{"CUDA_ARRAY_MEMORY_REQUIREMENTS", "size alignment"},
	{"CUarrayMapInfo", "resource offset flags"},
	{"CUDA_RESOURCE_DESC", "res res.linear res.pitch2D.width res.pitch2D.height flags"},
	{"CUDA_TEXTURE_DESC", "flags"},
	{"CUDA_RESOURCE_VIEW_DESC", "format width height depth"},
	{"CUmemAllocationProp", "type requestedHandleTypes location win32HandleMetaData allocFlags.usage"},
	{"CUmemAccessDesc", "location flags"},
	{"CUmemPoolProps", "allocType handleTypes location win32SecurityAttributes"},
	{"CUmemPoolPtrExportData", "reserved"},
	{"CUmemcpyAttributes", "flags"},
	{"CUgraphEdgeData", "from_port to_port type"},
	{"CUDA_GRAPH_INSTANTIATE_PARAMS", "flags"},
	{"CUgraphNodeParams", "type reserved0 kernel.kern kernel.ctx memcpy memset host conditional.handle conditional.ctx reserved2"},
}

// newerThan names what a toolkit's header does not have yet.
var newerThan = map[string][]string{
	"11.8": {"CUctxCreateParams", "CUasyncNotificationInfo", "CUDA_LAUNCH", "value.launchCompletionEvent.event", "value.launchCompletionEvent.flags",
		"CUmemcpyAttributes", "CUgraphEdgeData", "CUgraphNodeParams", "CUDA_GRAPH_INSTANTIATE_PARAMS"},
}

// moved names numbers that CUDA 12 gave a new meaning; the old ones have names of their own
// (..._V1) since.
var moved = map[string]bool{
	"CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS": true,
	"CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR": true,
	"CU_CTX_FLAGS_MASK": true,
}

// TestABI prints sizes, offsets and numbers from our header and from each toolkit's, and compares.
func TestABI(t *testing.T) {
	f := description(t)
	for _, v := range toolkits {
		t.Run(v, func(t *testing.T) {
			dir := include(t, v)
			probe := probeSource(f, v, readHeader(t, v).text)
			ours := runProbe(t, "-I"+filepath.Join(root, "guest/libcuda"), "gen/cuda_abi.h", probe)
			theirs := runProbe(t, "-I"+dir, "cuda.h", probe)
			if len(ours) != len(theirs) || len(ours) < 400 {
				t.Fatalf("%d lines from ours, %d from theirs", len(ours), len(theirs))
			}
			for i := range ours {
				if ours[i] != theirs[i] {
					t.Errorf("ours %s, theirs %s", ours[i], theirs[i])
				}
			}
		})
	}
}

var word = regexp.MustCompile(`\w+`)

func probeSource(f *idl.File, version, text string) string {
	declared := map[string]bool{}
	for _, w := range word.FindAllString(text, -1) {
		declared[w] = true
	}
	newest := version == toolkits[len(toolkits)-1]
	var b strings.Builder
	number := func(name string) {
		// Counts and bounds at an enumeration's end move with the version.
		bound := strings.HasSuffix(name, "_MAX") || strings.HasSuffix(name, "_NUM_OPTIONS")
		if newest || declared[name] && !bound && !moved[name] {
			fmt.Fprintf(&b, "\tprintf(\"%s %%lld\\n\", (long long)%s);\n", name, name)
		}
	}
	for _, r := range f.Results {
		number(r.Name)
	}
	for _, e := range f.Enums {
		if newest || declared[e.Name] {
			fmt.Fprintf(&b, "\tprintf(\"%s %%zu\\n\", sizeof(%s));\n", e.Name, e.Name)
		}
		for _, v := range e.Values {
			number(v.Name)
		}
	}
	skip := map[string]bool{}
	for _, n := range newerThan[version] {
		skip[n] = true
	}
	for _, l := range layouts {
		if skip[l.name] {
			continue
		}
		fmt.Fprintf(&b, "\tprintf(\"sizeof %s %%zu\\n\", sizeof(%s));\n", l.name, l.name)
		for fd := range strings.FieldsSeq(l.fields) {
			if !skip[fd] {
				fmt.Fprintf(&b, "\tprintf(\"%s.%s %%zu\\n\", offsetof(%s, %s));\n", l.name, fd, l.name, fd)
			}
		}
	}
	return "#include <stdio.h>\n#include <stddef.h>\nint main(void)\n{\n" + b.String() + "}\n"
}

func runProbe(t *testing.T, inc, header, source string) []string {
	t.Helper()
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "probe.c"), filepath.Join(dir, "probe")
	if err := os.WriteFile(src, []byte("#include <"+header+">\n"+source), 0o666); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-w", "-O0", inc, src, "-o", bin).CombinedOutput(); err != nil {
		t.Fatalf("compile the probe with %s: %v\n%s", header, err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

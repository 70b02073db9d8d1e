package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"causeway/cuda/idl"
)

// nvmlUndeclared lists what libnvidia-ml exports and the public header does not declare, with the
// reason it has a prototype here.
var nvmlUndeclared = map[string]string{
	"nvmlGetBlacklistDeviceCount":            "old name of nvmlGetExcludedDeviceCount",
	"nvmlGetBlacklistDeviceInfoByIndex":      "old name of nvmlGetExcludedDeviceInfoByIndex",
	"nvmlInternalGetExportTable":             "nvidia-smi asks for it",
	"nvmlDeviceGetHostname_v1":               "newer than the header",
	"nvmlDeviceSetHostname_v1":               "newer than the header",
	"nvmlDeviceGetRemappedRows_v2":           "newer than the header",
	"nvmlDeviceGetUnrepairableMemoryFlag_v1": "newer than the header",
	"nvmlDeviceReadPRMCounters_v1":           "newer than the header",
}

func nvmlDescription(t *testing.T) *idl.File {
	t.Helper()
	f, err := idl.ParseDir(filepath.Join(root, "cuda/api/nvml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := checkNVML(f); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestNVMLExports compares the description with the symbols of the real library, both ways.
func TestNVMLExports(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "guest/libnvml/symbols.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(string(b))
	var got []string
	for _, e := range nvmlDescription(t).Entries {
		got = append(got, e.Symbol)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		for _, s := range want {
			if !slices.Contains(got, s) {
				t.Errorf("%s is exported by the library and not described", s)
			}
		}
		for _, s := range got {
			if !slices.Contains(want, s) {
				t.Errorf("%s is described and not exported by the library", s)
			}
		}
	}
}

// nvmlHeader is the public header, which the module go-nvml carries; the module is pinned in go.mod
// and not linked.
func nvmlHeader(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "mod", "download", "-json", "github.com/NVIDIA/go-nvml").Output()
	m := regexp.MustCompile(`"Dir": "([^"]+)"`).FindSubmatch(out)
	if err != nil || m == nil {
		missing(t, fmt.Sprintf("no module go-nvml with the header of NVML: %v", err))
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		missing(t, "no gcc: run scripts/setup.sh")
	}
	return filepath.Join(string(m[1]), "gen/nvml/nvml.h")
}

var nvmlProtoRE = regexp.MustCompile(`(?:nvmlReturn_t|const char\s*\*)\s*(nvml\w+)\s*\(([^;{}()]*)\)\s*;`)

// TestNVMLPrototypes compares names and parameter types with the public header.
func TestNVMLPrototypes(t *testing.T) {
	path := nvmlHeader(t)
	text, err := exec.Command("gcc", "-E", "-P", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	h := &header{aliases: map[string]string{}}
	declared := map[string][]string{}
	for _, m := range nvmlProtoRE.FindAllStringSubmatch(string(text), -1) {
		declared[m[1]] = h.types(m[2])
	}
	if len(declared) < 380 {
		t.Fatalf("found only %d prototypes", len(declared))
	}
	for _, e := range nvmlDescription(t).Entries {
		want, ok := declared[e.Symbol]
		switch {
		case !ok && nvmlUndeclared[e.Symbol] == "":
			t.Errorf("%s is not declared", e.Symbol)
		case ok && !slices.Equal(h.of(&e), want):
			t.Errorf("%s (%s): described as\n\t%q, declared as\n\t%q", e.Symbol, e.Pos, h.of(&e), want)
		}
	}
}

// TestNVMLLayouts compares the structs of guest/libnvml/structs.h with those of the public header.
func TestNVMLLayouts(t *testing.T) {
	path := nvmlHeader(t)
	layouts := map[string]string{} // type in the header, fields of which offsets are compared
	for ours, fields := range map[string]string{
		"struct nvmlMemory|nvmlMemory_t":                          "total free used",
		"struct nvmlMemory_v2|nvmlMemory_v2_t":                    "version total reserved free used",
		"struct nvmlBAR1Memory|nvmlBAR1Memory_t":                  "bar1Total bar1Free bar1Used",
		"struct nvmlUtilization|nvmlUtilization_t":                "gpu memory",
		"struct nvmlPciInfo|nvmlPciInfo_t":                        "busIdLegacy domain bus device pciDeviceId pciSubSystemId busId",
		"struct nvmlPciInfoExt|nvmlPciInfoExt_v1_t":               "version domain bus device pciDeviceId pciSubSystemId baseClass subClass busId",
		"struct nvmlProcessInfo_v1|nvmlProcessInfo_v1_t":          "pid usedGpuMemory",
		"struct nvmlProcessInfo|nvmlProcessInfo_v2_t":             "pid usedGpuMemory gpuInstanceId computeInstanceId",
		"struct cw_process_detail|nvmlProcessDetail_v1_t":         "pid usedGpuMemory gpuInstanceId computeInstanceId usedGpuCcProtectedMemory",
		"struct nvmlProcessDetailList|nvmlProcessDetailList_v1_t": "version mode numProcArrayEntries procArray",
		"struct nvmlFieldValue|nvmlFieldValue_t":                  "fieldId scopeId timestamp latencyUsec valueType nvmlReturn value",
		"struct nvmlGpuFabricInfo|nvmlGpuFabricInfo_t":            "clusterUuid status cliqueId state",
		"struct nvmlGpuFabricInfoV|nvmlGpuFabricInfo_v3_t":        "version clusterUuid status cliqueId state healthMask healthSummary",
		"struct nvmlTemperature|nvmlTemperature_v1_t":             "version sensorType temperature",
		"struct nvmlMarginTemperature|nvmlMarginTemperature_v1_t": "version marginTemperature",
		"struct nvmlUUID|nvmlUUID_v1_t":                           "version type value",
	} {
		layouts[ours] = fields
	}
	print := func(include string, of int) string {
		var b strings.Builder
		fmt.Fprintf(&b, "#include <stddef.h>\n#include <stdio.h>\n#include %q\nint main(void)\n{\n", include)
		for pair, fields := range layouts {
			name := strings.Split(pair, "|")[of]
			fmt.Fprintf(&b, "printf(\"%s %%zu\", sizeof(%s));\n", pair, name)
			for f := range strings.FieldsSeq(fields) {
				fmt.Fprintf(&b, "printf(\" %s %%zu\", offsetof(%s, %s));\n", f, name, f)
			}
			b.WriteString("puts(\"\");\n")
		}
		b.WriteString("return 0;\n}\n")
		return runC(t, b.String(), filepath.Join(root, "guest/libnvml"))
	}
	ours, theirs := lines(print("structs.h", 0)), lines(print(path, 1))
	if !slices.Equal(ours, theirs) {
		t.Errorf("sizes and offsets:\n%s\nin the header:\n%s", strings.Join(ours, "\n"), strings.Join(theirs, "\n"))
	}
}

func lines(s string) []string {
	l := strings.Split(strings.TrimSpace(s), "\n")
	slices.Sort(l)
	return l
}

// runC compiles and runs a C program and returns its output.
func runC(t *testing.T, source, include string) string {
	t.Helper()
	dir := t.TempDir()
	c, exe := filepath.Join(dir, "main.c"), filepath.Join(dir, "main")
	if err := os.WriteFile(c, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-std=gnu11", "-I", include, c, "-o", exe).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(exe).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

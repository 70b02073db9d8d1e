package main

import (
	"errors"
	"strings"

	"causeway/cuda/idl"
)

// nvmlOutputs are the files that cuda/api/nvml describes: the entries of libnvidia-ml, and the
// snapshot that it asks its host.
func nvmlOutputs() []output {
	return []output{
		{"guest/libnvml/gen/nvml_abi.h", nvmlABI, nil},
		{"guest/libnvml/gen/snapshot.h", nvmlSnapshot, nil},
		{"guest/libnvml/gen/entries.h", nvmlEntriesHeader, nil},
		{"guest/libnvml/gen/entries.c", nvmlEntries, nil},
		{"guest/libnvml/gen/refused.c", nvmlRefused, nil},
		{"host/inventory/snapshot_gen.go", nvmlLayout, nil},
		{"docs/COVERAGE-NVML.md", nvmlCoverage, nil},
	}
}

// nvmlField is the device's field behind an entry, nil if it has none.
func nvmlField(f *idl.File, e *idl.Entry) *idl.StructField {
	for _, s := range f.Structs {
		if s.Name != "Device" {
			continue
		}
		for i := range s.Fields {
			if e.Field != "" && s.Fields[i].Name == e.Field {
				return &s.Fields[i]
			}
		}
	}
	return nil
}

// checkNVML verifies what nvmlEntries relies on: a getter has the parameters (device, pointer to
// the field's type).
func checkNVML(f *idl.File) error {
	numbers := map[string]bool{"unsigned int": true}
	for _, t := range f.Types {
		numbers[t.Name] = t.Decl == "unsigned int"
	}
	var errs []error
	for i := range f.Entries {
		e := &f.Entries[i]
		if e.Field == "" {
			continue
		}
		fd := nvmlField(f, e)
		if fd == nil || fd.Count > 0 || len(e.Params) != 2 || e.Params[0].Type != "nvmlDevice_t" {
			errs = append(errs, e.Errorf("%s: no getter of a field %s", e.Symbol, e.Field))
			continue
		}
		of, ok := strings.CutSuffix(e.Params[1].Type, " *")
		if !ok || fd.Type == "u32" && !numbers[of] || fd.Type == "u64" && of != "unsigned long long" || fd.Type != "u32" && fd.Type != "u64" {
			errs = append(errs, e.Errorf("%s: field %s is %s", e.Symbol, e.Field, fd.Type))
		}
	}
	return errors.Join(errs...)
}

func nvmlABI(w *writer, f *idl.File) {
	w.cFile("CW_GEN_NVML_ABI_H", "<stddef.h>", "<stdint.h>")
	w.f("/* Types of NVML's prototypes by their public names. Declarations are our own: cuda/api/nvml/types.idl. */")
	w.f("typedef int nvmlReturn_t;")
	for _, t := range f.Types {
		w.f("typedef %s%s%s;", t.Decl, space(t.Decl), t.Name)
	}
	w.f("\n#endif")
}

func nvmlSnapshot(w *writer, f *idl.File) {
	w.cFile("CW_GEN_NVML_SNAPSHOT_H", "<stddef.h>", "<stdint.h>")
	w.f("/* Layout of the host's answer: cuda/api/nvml/snapshot.idl says what it means. */")
	for _, c := range f.Consts {
		w.f("#define %s %su", macro(c.Name), c.Text)
	}
	w.f("")
	for _, s := range f.Structs {
		cStruct(w, &s)
	}
	w.f("#endif")
}

// nvmlLayout gives package inventory the snapshot's layout.
func nvmlLayout(w *writer, f *idl.File) {
	w.goFile("inventory", "encoding/binary")
	w.f("// Numbers of cuda/api/nvml/snapshot.idl, which says what they mean.\nconst (")
	for _, c := range f.Consts {
		w.f("%s = %s", c.Name, c.Text)
	}
	w.f(")\n")
	for _, s := range f.Structs {
		w.f("// %sSize is the length of an encoded %s.\nconst %sSize = %d\n", s.Name, s.Name, s.Name, s.Size)
		goStruct(w, &s)
		w.f("// Append appends the encoded form to b.")
		w.f("func (v *%s) Append(b []byte) []byte {\nb, _ = binary.Append(b, binary.LittleEndian, v) // fixed size: cannot fail\nreturn b\n}\n", s.Name)
		w.f("// Decode reads the first %sSize bytes of b.", s.Name)
		w.f("func (v *%s) Decode(b []byte) error {\n_, err := binary.Decode(b, binary.LittleEndian, v)\nreturn err\n}\n", s.Name)
	}
}

// nvmlPrototype is a function's head.
func nvmlPrototype(name string, params []idl.Param) string {
	p := strings.TrimPrefix(prototype(name, "", params), "CUresult ")
	if strings.HasSuffix(strings.TrimPrefix(name, "cwi_"), "nvmlErrorString") {
		return "const char *" + p
	}
	return "nvmlReturn_t " + p
}

func nvmlEntriesHeader(w *writer, f *idl.File) {
	w.cFile("CW_GEN_NVML_ENTRIES_H", "gen/nvml_abi.h")
	w.f("/* Every symbol that libnvidia-ml.so.1 exports. */\n#pragma GCC visibility push(default)")
	for _, e := range f.Entries {
		w.f("%s;", nvmlPrototype(e.Symbol, e.Params))
	}
	w.f("#pragma GCC visibility pop\n\n/* What is written by hand, behind them. */\n#pragma GCC visibility push(hidden)")
	for _, e := range f.Entries {
		if e.Mode != idl.ModeRefuse && e.As == e.Symbol && e.Field == "" {
			w.f("%s;", nvmlPrototype("cwi_"+e.Symbol, e.Params))
		}
	}
	w.f("#pragma GCC visibility pop\n\n#endif")
}

// nvmlEntries defines the exported symbols that are not refused.
func nvmlEntries(w *writer, f *idl.File) {
	w.cFile("", "device.h", "gen/entries.h", "gen/snapshot.h")
	for _, e := range f.Entries {
		if e.Mode == idl.ModeRefuse {
			continue
		}
		var args []string
		for _, p := range e.Params {
			args = append(args, p.Name)
		}
		w.f("%s\n{", nvmlPrototype(e.Symbol, e.Params))
		fd := nvmlField(f, &e)
		switch {
		case fd != nil:
			w.f("\treturn cw_nvml_said(%q, cw_nvml_%s(%s, offsetof(struct cw_device, %s)));", e.Symbol, fd.Type, strings.Join(args, ", "), e.Field)
		case e.Guard == "free":
			w.f("\treturn cwi_%s(%s);", e.As, strings.Join(args, ", "))
		default:
			w.f("\treturn cw_nvml_said(%q, cw_nvml_ready() ? cwi_%s(%s) : NVML_UNINITIALIZED);", e.Symbol, e.As, strings.Join(args, ", "))
		}
		w.f("}\n")
	}
}

// nvmlRefused defines the exported symbols that answer NVML_ERROR_NOT_SUPPORTED.
func nvmlRefused(w *writer, f *idl.File) {
	w.cFile("", "device.h", "gen/entries.h")
	w.f("#pragma GCC diagnostic ignored \"-Wunused-parameter\"\n")
	n := 0
	for _, e := range f.Entries {
		if e.Mode != idl.ModeRefuse {
			continue
		}
		w.f("%s\n{\n\tstatic _Atomic int said;\n\n\treturn cw_nvml_refuse(&said, %q, %q);\n}\n", nvmlPrototype(e.Symbol, e.Params), e.Symbol, e.Reason)
		n++
	}
}

func nvmlCoverage(w *writer, f *idl.File) {
	w.f("<!-- %s -->", notice)
	w.f("# Coverage of NVML\n")
	w.f("Every symbol that `libnvidia-ml.so.1` of driver 580 (CUDA 13.0) exports is exported by Causeway's. *Answered by the host* ones")
	w.f("give what the host knows of the vGPU: its own devices, its limit, its own processes. *Local* ones need no host. *Refused*")
	w.f("ones return `NVML_ERROR_NOT_SUPPORTED`, as real devices do for what they lack, and name themselves once on stderr with")
	w.f("`CAUSEWAY_LOG=info`. A value that the host itself does not know is `NVML_ERROR_NOT_SUPPORTED` as well.")
	w.f("Written from `cuda/api/nvml/entries_*.idl`.\n")
	w.f("| theme | host | local | refused |\n| --- | ---: | ---: | ---: |")
	var total count
	for _, t := range f.Themes {
		c := counts(f, t.Name)
		total.add(c)
		w.f("| %s | %d | %d | %d |", t.Title, c.hand, c.local, c.refused)
	}
	w.f("| **symbols: %d** | **%d** | **%d** | **%d** |\n", total.hand+total.local+total.refused, total.hand, total.local, total.refused)
	for _, t := range f.Themes {
		w.f("## %s\n", t.Title)
		list(w, "Answered by the host", names(f, t.Name, idl.ModeHand, ""))
		list(w, "Local", names(f, t.Name, idl.ModeLocal, ""))
		for _, reason := range reasons(f, t.Name) {
			list(w, "Refused ("+reason+")", names(f, t.Name, idl.ModeRefuse, reason))
		}
	}
}

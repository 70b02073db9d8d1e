package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"causeway/cuda/idl"
)

// toolkits are the versions whose public headers the description is compared with; scripts/setup.sh
// cuda fetches them.
var toolkits = []string{"11.8", "12.9", "13.0"}

// undescribed lists what headers declare and the library does not export.
var undescribed = map[string]string{
	"cuEventCreateFromEGLSync": "declared for EGL; no driver from 535 on exports it",
	"cuWGLGetDevice":           "exists on Windows only",
}

func include(t *testing.T, version string) string {
	t.Helper()
	dir := filepath.Join(root, "build/cuda", version, "include")
	if _, err := os.Stat(filepath.Join(dir, "cuda.h")); err != nil {
		missing(t, "no headers of CUDA "+version+": run scripts/setup.sh cuda")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		missing(t, "no gcc: run scripts/setup.sh")
	}
	return dir
}

func missing(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CAUSEWAY_REQUIRE_CUDA_HEADERS") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// header is what one toolkit declares.
type header struct {
	text    string // preprocessed cuda.h
	aliases map[string]string
	protos  map[string][]string // symbol: parameter types
	pfns    map[pfn][]string
}

// pfn is a typedef of a function pointer: base name, version and twin say which symbol
// cuGetProcAddress gives.
type pfn struct {
	base    string
	version int
	twin    string
}

var (
	protoRE = regexp.MustCompile(`\bCUresult\s+(cu\w+)\s*\(([^;{}()]*)\)\s*;`)
	pfnRE   = regexp.MustCompile(`\*PFN_(cu\w+?)_v([0-9]+)(?:_(ptds|ptsz))?\)\s*\(([^;{}()]*)\)\s*;`)
	aliasRE = regexp.MustCompile(`typedef\s+(?:struct\s+)?(CU\w+)\s+(CU\w+);`)
	blanks  = regexp.MustCompile(`\s+`)
)

func readHeader(t *testing.T, version string) *header {
	t.Helper()
	dir := include(t, version)
	h := &header{aliases: map[string]string{}, protos: map[string][]string{}, pfns: map[pfn][]string{}}
	// The internal switch makes cuda.h declare old and per-thread symbols under their own names.
	cmd := exec.Command("gcc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-I", dir, "-x", "c", filepath.Join(dir, "cuda.h"))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("preprocess cuda.h %s: %v", version, err)
	}
	h.text = string(out)
	egl, err := os.ReadFile(filepath.Join(dir, "cudaEGL.h"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range aliasRE.FindAllStringSubmatch(h.text+string(egl), -1) {
		h.aliases[m[2]] = m[1]
	}
	for _, m := range protoRE.FindAllStringSubmatch(h.text, -1) {
		h.protos[m[1]] = h.types(m[2])
	}
	typedefs, err := filepath.Glob(filepath.Join(dir, "cuda*Typedefs.h"))
	if err != nil || len(typedefs) == 0 {
		t.Fatalf("no typedef headers in CUDA %s (%v)", version, err)
	}
	for _, name := range typedefs {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pfnRE.FindAllStringSubmatch(string(b), -1) {
			v, _ := strconv.Atoi(m[2])
			h.pfns[pfn{m[1], v, m[3]}] = h.types(m[4])
		}
	}
	if len(h.protos) < 400 || len(h.pfns) < 400 {
		t.Fatalf("CUDA %s: found only %d prototypes and %d typedefs", version, len(h.protos), len(h.pfns))
	}
	return h
}

// types normalises a parameter list: names go, aliases are resolved.
func (h *header) types(params string) []string {
	params = strings.TrimSpace(blanks.ReplaceAllString(params, " "))
	if params == "void" || params == "" {
		return nil
	}
	var out []string
	for p := range strings.SplitSeq(params, ",") {
		p = strings.TrimSpace(p)
		if i := strings.LastIndexAny(p, " *"); i >= 0 && !strings.HasSuffix(p, "*") {
			p = p[:i+1]
		}
		out = append(out, h.normal(p))
	}
	return out
}

func (h *header) normal(typ string) string {
	words := strings.Fields(idl.NormalType(strings.ReplaceAll(typ, " CUDAAPI", "")))
	for i, w := range words {
		for n := 0; h.aliases[w] != "" && n < 8; n++ {
			w = h.aliases[w]
		}
		words[i] = w
	}
	s := strings.Join(words, " ")
	if strings.HasPrefix(s, "unsigned") && (s == "unsigned" || strings.HasPrefix(s, "unsigned *")) {
		s = "unsigned int" + s[len("unsigned"):]
	}
	return s
}

func (h *header) of(e *idl.Entry) []string {
	var out []string
	for _, p := range e.Params {
		out = append(out, h.normal(p.Type))
	}
	return out
}

// TestHeaders compares names, arity, parameter types and versions with the public headers.
func TestHeaders(t *testing.T) {
	f := description(t)
	for _, v := range toolkits {
		t.Run(v, func(t *testing.T) {
			h := readHeader(t, v)
			compareSymbols(t, f, h)
			compareVersions(t, f, h, v == toolkits[len(toolkits)-1])
		})
	}
}

func compareSymbols(t *testing.T, f *idl.File, h *header) {
	described := map[string]*idl.Entry{}
	for i := range f.Entries {
		for _, s := range f.Entries[i].Symbols() {
			described[s] = &f.Entries[i]
		}
	}
	for s, want := range h.protos {
		e := described[s]
		switch {
		case e == nil && undescribed[s] == "":
			t.Errorf("%s is declared and neither described nor listed with a reason", s)
		case e != nil && !slices.Equal(h.of(e), want):
			t.Errorf("%s (%s): described as\n\t%q, declared as\n\t%q", s, e.Pos, h.of(e), want)
		}
	}
}

// compareVersions checks what cuGetProcAddress must find. newest: every version of ours must be in
// this header.
func compareVersions(t *testing.T, f *idl.File, h *header, newest bool) {
	ours := map[pfn]*idl.Entry{}
	for i := range f.Entries {
		e := &f.Entries[i]
		if e.Since == 0 {
			continue
		}
		ours[pfn{e.Base, e.Since, ""}] = e
		if e.Twin != "" {
			ours[pfn{e.Base, max(e.Since, 7000), e.Twin}] = e
		}
	}
	for p, want := range h.pfns {
		e := ours[p]
		switch {
		case e == nil && undescribed[p.base] == "":
			t.Errorf("%s of version %d %s is declared and not described", p.base, p.version, p.twin)
		case e != nil && !slices.Equal(h.of(e), want):
			t.Errorf("%s of version %d (%s): described as\n\t%q, declared as\n\t%q", p.base, p.version, e.Pos, h.of(e), want)
		}
	}
	for p, e := range ours {
		if newest && h.pfns[p] == nil && len(e.Params) > 0 {
			t.Errorf("%s: %s of version %d %s is described and not declared", e.Pos, p.base, p.version, p.twin)
		}
	}
}

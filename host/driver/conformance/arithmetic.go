package conformance

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/conformance/ptxgen"
)

// arithmeticSums is what an H200 (driver 580) computed: a line per seed, a sum per instruction. It
// was written by this test with CAUSEWAY_WRITE_ARITHMETIC=FILE on such a GPU.
//
//go:embed testdata/arithmetic.txt
var arithmeticSums string

// formResults is what that GPU computed for each of ptxgen.Forms by itself, one after the other,
// gzipped; written with CAUSEWAY_WRITE_FORMS=FILE.
//
//go:embed testdata/forms.gz
var formResults []byte

const (
	arithmeticPrograms = 96
	arithmeticLength   = 48
	maxTold            = 8 // lanes of a form whose difference is told
)

// assembled are results, by seed and number, that the GPU's assembler decided and not its
// arithmetic.
var assembled = map[[2]uint64]string{
	{27, 35}: "cvt.s32.s16 of neg.s16: taken for free, although the smallest number's complement is not representable",
}

// testArithmetic runs random programs and compares each instruction's results with a real GPU's.
func testArithmetic(t *testing.T, g *Guest) {
	known := parseSums(t, arithmeticSums)
	var record *os.File
	if name := os.Getenv("CAUSEWAY_WRITE_ARITHMETIC"); name != "" {
		var err error
		if record, err = os.Create(name); err != nil {
			t.Fatal(err)
		}
		defer record.Close()
	}
	for seed := range uint64(arithmeticPrograms) {
		p := ptxgen.New(seed, arithmeticLength)
		out, res := g.runProgram(p)
		if res != cuda.Success {
			t.Errorf("seed %d: %v", seed, res)
			continue
		}
		sums := p.Sums(out)
		if record != nil {
			fmt.Fprintln(record, seed, strings.Trim(fmt.Sprintf("%08x", sums), "[]"))
			continue
		}
		want, ok := known[seed]
		if !ok || len(want) != len(sums) {
			t.Fatalf("testdata/arithmetic.txt lacks seed %d: run with CAUSEWAY_WRITE_ARITHMETIC on a GPU", seed)
		}
		for i := range sums {
			if sums[i] != want[i] && assembled[[2]uint64{seed, uint64(i)}] == "" {
				t.Errorf("seed %d, result %d: %s differs from an H200; here lane 0 has %#x, lane 1 %#x", seed, i, p.Steps[i], p.Value(out, i, 0), p.Value(out, i, 1))
				break // what follows may depend on it
			}
		}
	}
}

// testForms runs each instruction by itself and compares its results value by value with a real
// GPU's.
func testForms(t *testing.T, g *Guest) {
	if name := os.Getenv("CAUSEWAY_WRITE_FORMS"); name != "" {
		writeForms(t, g, name)
		return
	}
	z, err := gzip.NewReader(bytes.NewReader(formResults))
	if err != nil {
		t.Fatalf("testdata/forms.gz: %v", err)
	}
	for i, form := range ptxgen.Forms() {
		p := ptxgen.Single(uint64(i), form)
		want := make([]byte, p.OutputSize())
		if _, err := io.ReadFull(z, want); err != nil {
			t.Fatalf("testdata/forms.gz ends before %q: %v", form, err)
		}
		got, res := g.runProgram(p)
		if res != cuda.Success {
			t.Errorf("%s: %v", form, res)
			continue
		}
		for lane, told := 0, 0; lane < ptxgen.Lanes && told < maxTold; lane++ {
			if a, b := p.Value(got, 0, lane), p.Value(want, 0, lane); a != b {
				t.Errorf("form %d, %s with %s: %#x, an H200 has %#x", i, p.Steps[0], p.Sources(0, lane), a, b)
				told++
			}
		}
	}
}

func writeForms(t *testing.T, g *Guest, name string) {
	var all bytes.Buffer
	z := gzip.NewWriter(&all)
	for i, form := range ptxgen.Forms() {
		out, res := g.runProgram(ptxgen.Single(uint64(i), form))
		g.ok(res, form)
		if _, err := z.Write(out); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, all.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
}

// runProgram gives a program's results.
func (g *Guest) runProgram(p *ptxgen.Program) ([]byte, cuda.Result) {
	g.t.Helper()
	mod := g.load(p.Text)
	f := g.kernel(mod, ptxgen.Entry)
	in, out := g.alloc(uint64(len(p.Input))), g.alloc(uint64(p.OutputSize()))
	g.put(in, p.Input)
	g.ok(g.Session.Memset(g.call(wire.OpMemset), &wire.MemsetArgs{Dst: out, Element: 1, Width: uint64(p.OutputSize()), Height: 1, Stream: 1}), "Memset")
	params := binary.LittleEndian.AppendUint64(nil, out)
	params = binary.LittleEndian.AppendUint64(params, in)
	if res := g.Session.Launch(g.call(wire.OpLaunch), &wire.LaunchArgs{Func: f, Stream: 1, Gx: 1, Gy: 1, Gz: 1, Bx: ptxgen.Lanes, By: 1, Bz: 1, Params: params}); res != cuda.Success {
		return nil, res
	}
	if res := g.sync(); res != cuda.Success {
		return nil, res
	}
	got := g.get(out, p.OutputSize())
	for _, ptr := range []uint64{in, out} {
		g.ok(g.Session.MemFree(g.call(wire.OpMemFree), &wire.MemFreeArgs{Ptr: ptr}), "MemFree")
	}
	g.ok(g.Session.ModuleUnload(g.call(wire.OpModuleUnload), &wire.ModuleUnloadArgs{Module: mod}), "ModuleUnload")
	return got, cuda.Success
}

func parseSums(t *testing.T, text string) map[uint64][]uint32 {
	t.Helper()
	known := map[uint64][]uint32{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		seed, err := strconv.ParseUint(words[0], 10, 64)
		if err != nil {
			t.Fatalf("testdata/arithmetic.txt: %v", err)
		}
		for _, w := range words[1:] {
			v, err := strconv.ParseUint(w, 16, 32)
			if err != nil {
				t.Fatalf("testdata/arithmetic.txt: %v", err)
			}
			known[seed] = append(known[seed], uint32(v))
		}
	}
	return known
}

package idl

import (
	"strings"
	"testing"
)

func TestParseDir(t *testing.T) {
	f, err := ParseDir("../api")
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Ops) < 70 || len(f.Entries) < 500 || len(f.Results) < 90 {
		t.Errorf("%d ops, %d entries, %d results", len(f.Ops), len(f.Entries), len(f.Results))
	}
}

func TestLayout(t *testing.T) {
	f, err := Parse("t.idl", "op A sync driver capture any transient\n in a u32\n in b u64\n in c bytes\n in d u32\n out p u32\n out q f32\n")
	if err != nil {
		t.Fatal(err)
	}
	o := f.Ops[0]
	var got []int
	for _, fd := range o.In {
		got = append(got, fd.Offset)
	}
	if want := []int{0, 8, 16, 24}; len(got) != 4 || got[1] != want[1] || got[2] != want[2] || got[3] != want[3] || o.InLen != 32 || o.OutLen != 8 {
		t.Errorf("offsets %v, %d in, %d out", got, o.InLen, o.OutLen)
	}
}

func TestObject(t *testing.T) {
	f, err := Parse("t.idl", `op New sync driver capture any creates func
  in func newid
  in module id
op Alloc sync driver capture any creates mem
  in size u64
  out ptr u64
op Free async driver capture any destroys mem
  in ptr u64
op Limit sync driver capture any modifies ctx
  in v u64
op Map sync driver capture any creates region
  in kind u32
  in region u32
op Begin sync driver capture any creates session
op Ask sync driver capture any transient
  in func id
`)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []ObjectIn{ObjectRequest, ObjectReply, ObjectRequest, ObjectContext, ObjectRequest, ObjectSession, ObjectNone} {
		if got, _ := f.Ops[i].Object(); got != want {
			t.Errorf("%s: object in %q, want %q", f.Ops[i].Name, got, want)
		}
	}
	if _, fd := f.Ops[4].Object(); fd.Name != "region" {
		t.Errorf("a region is named by %s", fd.Name)
	}
}

func TestErrors(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"unknown word", "frob x", `t.idl:1: unknown declaration "frob"`},
		{"orphan", "  in a u32", "t.idl:1: "},
		{"const", "const A u32 -1", "t.idl:1: const A"},
		{"const range", "const A u16 0x10000", "t.idl:1: const A"},
		{"padding", "struct S\n a u32\n b u64", "t.idl:3: S.b: implicit padding"},
		{"struct end", "struct S\n b u64\n a u32", "t.idl:1: struct S: size 12"},
		{"op mode", "op A often", "t.idl:1: op A: mode often"},
		{"op type", "op A sync\n in a u8", "t.idl:2: type u8"},
		{"kind", "op A sync\n in thing id", `t.idl:2: A thing: "thing" is not a kind`},
		{"twice", "op A sync\nop A sync", "t.idl:2: op A was declared at t.idl:1"},
		{"field twice", "op A sync\n in a u32\n out a u32", "t.idl:3: A: field a"},
		{"async reply", "op A async\n out a u32", "t.idl:1: op A: an async op has no reply"},
		{"two bytes", "op A sync driver capture any transient\n out a bytes\n out b bytes", "t.idl:1: op A: more than one bytes"},
		{"no newid", "op A sync creates func\n in a u32", "t.idl:1: op A: creates func"},
		{"quote", "theme a \"x", "t.idl:1: unfinished quote"},
		{"no theme", `entry cuX 1 hand "void"`, "t.idl:1: entry before any theme"},
		{"no reason", "theme a \"A\"\nentry cuX 1 refuse \"void\"", "t.idl:2: cuX is refused without a reason"},
		{"no params", "theme a \"A\"\nentry cuX 1 hand ptsz", "t.idl:2: cuX: no parameters"},
		{"bad params", "theme a \"A\"\nentry cuX 1 hand \"int\"", "t.idl:2: cuX: "},
		{"param twice", "theme a \"A\"\nentry cuX 1 hand \"int a, int a\"", "t.idl:2: cuX: two parameters are called a"},
		{"as", "theme a \"A\"\nentry cuX 1 hand as cuY \"void\"", "t.idl:2: cuX: there is no entry cuY"},
		{"mode", "theme a \"A\"\nentry cuX 1 maybe \"void\"", "t.idl:2: cuX: mode \"maybe\""},
		{"codes", "results\n 2 B \"b\"\n 1 A \"a\"", "t.idl:3: codes must ascend"},
		{"strip", "enum E go X strip CU_\n A 1", "t.idl:2: A does not begin with CU_"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("t.idl", tc.text)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestEntry(t *testing.T) {
	f, err := Parse("t.idl", `theme m "M" refuse "later"
entry cuMemcpyHtoD_v2 3020 hand ptds alive "CUdeviceptr dst, const void * src, size_t bytes"
entry cuY 5 refuse "void"
entry cuZ 5 refuse "int  **a" reason "never"
`)
	if err != nil {
		t.Fatal(err)
	}
	e := f.Entries[0]
	if e.Base != "cuMemcpyHtoD" || e.Since != 3020 || e.Guard != "alive" || len(e.Params) != 3 || e.Params[1] != (Param{"const void *", "src"}) {
		t.Errorf("%+v", e)
	}
	if s := e.Symbols(); len(s) != 2 || s[1] != "cuMemcpyHtoD_v2_ptds" {
		t.Errorf("symbols %v", s)
	}
	if f.Entries[1].Reason != "later" || f.Entries[2].Reason != "never" || f.Entries[2].Params[0].Type != "int **" {
		t.Errorf("%+v", f.Entries[1:])
	}
}

// FuzzParse: no text makes the parser panic, and every error names a line.
func FuzzParse(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse("t.idl", text)
		if err != nil && !strings.HasPrefix(err.Error(), "t.idl:") {
			t.Errorf("error without a line: %v", err)
		}
		if err == nil {
			for i := range file.Ops {
				file.Ops[i].Object()
			}
		}
	})
}

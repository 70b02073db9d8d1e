package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"causeway/cuda/idl"
)

const root = "../.."

func description(t *testing.T) *idl.File {
	t.Helper()
	f, err := parse(root)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestRegenerate fails when the committed files are not what the description says: run go generate
// ./cuda.
func TestRegenerate(t *testing.T) {
	f := description(t)
	all, err := everything(root, f)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		want, err := render(o, o.from)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(root, o.path))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s is out of date: run go generate ./cuda", o.path)
		}
	}
}

// exported reads the list of symbols that driver 580 exports.
func exported(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "cuda/api/exports-580.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(b))
}

// TestExports compares the description with the symbols of the real library, both ways.
func TestExports(t *testing.T) {
	var described []string
	for _, e := range description(t).Entries {
		described = append(described, e.Symbols()...)
	}
	slices.Sort(described)
	list := exported(t)
	for _, s := range list {
		if _, ok := slices.BinarySearch(described, s); !ok {
			t.Errorf("%s is exported by the driver and not described", s)
		}
	}
	for _, s := range described {
		if !slices.Contains(list, s) {
			t.Errorf("%s is described and not exported by the driver", s)
		}
	}
}

func TestNames(t *testing.T) {
	for in, want := range map[string]string{
		"WorkerDead": "CW_WORKER_DEAD", "Region0Size": "CW_REGION0_SIZE", "CapMap": "CW_CAP_MAP", "MaxInlineData": "CW_MAX_INLINE_DATA",
	} {
		if got := macro(in); got != want {
			t.Errorf("macro(%s) = %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]string{"wall_ms": "WallMs", "uuid_v2": "UUIDV2", "bytes_": "Bytes", "pci_bus_id": "PCIBusID"} {
		if got := camel(in); got != want {
			t.Errorf("camel(%s) = %s, want %s", in, got, want)
		}
	}
}

// TestVersion: what changes the protocol changes its version; where it stands in the description
// does not.
func TestVersion(t *testing.T) {
	version := func(change func(*idl.File)) uint64 {
		f, err := idl.ParseDir(filepath.Join(root, "cuda/api"))
		if err != nil {
			t.Fatal(err)
		}
		change(f)
		if err := setVersion(f); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(f.Consts, func(c idl.Const) bool { return c.Name == versionName })
		return f.Consts[i].Value
	}
	is := version(func(*idl.File) {})
	if again := version(func(f *idl.File) { f.Ops[0].Line++ }); again != is {
		t.Errorf("where an operation is described counts: %d, %d", again, is)
	}
	if traits := version(func(f *idl.File) {
		for i := range f.Ops { // none of it travels: only the host looks
			o := &f.Ops[i]
			o.Place, o.Order, o.Capture, o.Counts, o.Effect, o.OwnResult = "gpu", "stream", "unsafe", "launch", idl.Unrecorded, true
		}
	}); traits != is {
		t.Errorf("what an operation is to the host counts: %d, %d", traits, is)
	}
	for what, change := range map[string]func(*idl.File){
		"an operation's number":   func(f *idl.File) { f.Ops[3].Num++ },
		"an argument's type":      func(f *idl.File) { f.Ops[0].In[0].Type = "u64" },
		"whether it is answered":  func(f *idl.File) { f.Ops[0].Mode += "?" },
		"a field's place":         func(f *idl.File) { f.Structs[0].Fields[1].Offset++ },
		"a constant":              func(f *idl.File) { f.Consts[len(f.Consts)-1].Value++ },
		"the version that counts": func(f *idl.File) { f.Consts[0].Value++ },
	} {
		if version(change) == is {
			t.Errorf("%s does not count", what)
		}
	}
}

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
	f, err := idl.ParseDir(filepath.Join(root, "cuda/api"))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestRegenerate fails when the committed files are not what the description says: run go generate ./cuda.
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

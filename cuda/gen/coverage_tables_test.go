package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// TestExportTables compares the documented tables with those that the guest library hands out.
func TestExportTables(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "guest/libcuda/api/exporttables.c"))
	if err != nil {
		t.Fatal(err)
	}
	var served, documented []string
	row := regexp.MustCompile(`\{\{0x(..), 0x(..), 0x(..), 0x(..),[^}]*\}, &?\w+\},`)
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		id := ""
		for _, b := range m[1:] {
			id += b
		}
		served = append(served, id)
	}
	for _, e := range exportTables {
		if e.served {
			documented = append(documented, e.id)
		}
	}
	slices.Sort(served)
	slices.Sort(documented)
	if len(served) < 10 || !slices.Equal(served, documented) {
		t.Errorf("served %v, documented %v", served, documented)
	}
}

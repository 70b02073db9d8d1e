package bind

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestLayouts compares sizes and offsets of Go's structs with those of the header that guests'
// programs are compiled with.
func TestLayouts(t *testing.T) {
	dir := t.TempDir()
	var src strings.Builder
	src.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include \"gen/cuda_abi.h\"\nint main(void)\n{\n")
	for _, l := range layouts {
		fmt.Fprintf(&src, "\tprintf(\"%%zu\\n\", %s);\n", l.c)
	}
	src.WriteString("}\n")
	file, bin := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	if err := os.WriteFile(file, []byte(src.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-w", "-I", "../../../../guest/libcuda", file, "-o", bin).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(out))
	if len(lines) != len(layouts) || len(lines) < 150 {
		t.Fatalf("%d lines for %d layouts", len(lines), len(layouts))
	}
	for i, l := range layouts {
		if lines[i] != fmt.Sprint(l.value) {
			t.Errorf("%s: C %s, Go %d", l.c, lines[i], l.value)
		}
	}
}

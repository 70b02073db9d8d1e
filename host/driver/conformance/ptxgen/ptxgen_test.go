package ptxgen_test

import (
	"testing"

	"causeway/host/driver/conformance/ptxgen"
)

// The same seed is the same program: committed results depend on it.
func TestSeedsAreStable(t *testing.T) {
	a, b := ptxgen.New(7, 24), ptxgen.New(7, 24)
	if a.Text != b.Text || string(a.Input) != string(b.Input) {
		t.Fatal("two programs of one seed differ")
	}
	if c := ptxgen.New(8, 24); c.Text == a.Text {
		t.Fatal("two seeds give one program")
	}
	if len(a.Steps) != 24 || a.OutputSize() != 24*32*8 {
		t.Fatalf("%d steps, %d bytes", len(a.Steps), a.OutputSize())
	}
}

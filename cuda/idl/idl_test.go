package idl

import "testing"

func TestParseDir(t *testing.T) {
	f, err := ParseDir("../api")
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Ops) < 70 {
		t.Errorf("only %d ops", len(f.Ops))
	}
}

package main

import (
	"io"
	"strings"
	"testing"
)

// TestArguments: a wrong number of them is answered with what the command takes.
func TestArguments(t *testing.T) {
	for use, args := range map[string][]string{
		"causeway-fleet drain NODE": {"drain"},
		"causeway-fleet claim NAME": {"claim", "a", "b"},
		"causeway-fleet ls":         {"ls", "a"},
	} {
		c := root()
		c.SetArgs(args)
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "use `"+use) {
			t.Errorf("%v: %v, want %q", args, err, use)
		}
	}
}

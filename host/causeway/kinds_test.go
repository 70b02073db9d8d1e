package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// What stands in back quotes in a flag's text is what --help calls its value: one word, not a
// command that the text names.
func TestKindsAreWords(t *testing.T) {
	n := 0
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			n++
			if kind, _ := pflag.UnquoteUsage(f); strings.Contains(kind, "causeway") {
				t.Errorf("%s --%s takes a %q", c.CommandPath(), f.Name, kind)
			}
		})
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	check(root())
	if n < 100 {
		t.Errorf("only %d flags", n)
	}
}

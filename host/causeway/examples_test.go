package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// shell matches what follows a command in an example: a pipe, a redirection, a comment.
var shell = regexp.MustCompile(` +[|>#].*$`)

// argument is a word, or one in single quotes.
var argument = regexp.MustCompile(`'[^']*'|[^ ]+`)

// TestExamples: each example that help prints is a command that there is, with flags and arguments
// that it takes.
func TestExamples(t *testing.T) {
	n := 0
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		for line := range strings.SplitSeq(c.Example, "\n") {
			line = strings.TrimSpace(shell.ReplaceAllString(line, ""))
			rest, ours := strings.CutPrefix(line, "causeway ")
			if !ours {
				continue
			}
			n++
			args := argument.FindAllString(rest, -1)
			for i := range args {
				args[i] = strings.Trim(args[i], "'")
			}
			if err := takes(args); err != nil {
				t.Errorf("help of %s: %q: %v", c.CommandPath(), line, err)
			}
		}
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	check(root())
	if n < 40 {
		t.Errorf("only %d examples", n)
	}
	for _, bad := range [][]string{{"limits"}, {"limits", "vm1", "--memory", "4"}, {"prune"}, {"ps", "-q", "--json"}, {"device"}} {
		if takes(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// takes judges a command line without running it.
func takes(args []string) error {
	c, rest, err := root().Find(args)
	if err != nil {
		return err
	}
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	for _, err := range []error{c.ValidateArgs(c.Flags().Args()), c.ValidateRequiredFlags(), c.ValidateFlagGroups()} {
		if err != nil {
			return err
		}
	}
	return nil
}

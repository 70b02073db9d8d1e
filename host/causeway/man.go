package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manCommand writes a manual page for every command that people use; packages install them.
func manCommand() *cobra.Command {
	var date string
	c := &cobra.Command{
		Use:    "man DIR",
		Short:  "Write manual pages to a folder",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			return writePages(cmd.Root(), args[0], date)
		},
	}
	c.Flags().StringVar(&date, "date", "", "date in the pages' footers, as in 2026-11-21")
	return c
}

// writePages writes the page of c and those below it.
func writePages(c *cobra.Command, dir, date string) error {
	if c.Hidden || c.Name() == "help" {
		return nil
	}
	name := pageName(c)
	if err := os.WriteFile(filepath.Join(dir, name+".1"), []byte(manPage(c, date)), 0o644); err != nil {
		return fmt.Errorf("manual page of %s: %w", name, err)
	}
	for _, sub := range c.Commands() {
		if err := writePages(sub, dir, date); err != nil {
			return err
		}
	}
	return nil
}

func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// roff collects a page in the man macros (man 7 man).
type roff struct{ strings.Builder }

func (r *roff) line(format string, a ...any) { fmt.Fprintf(r, format+"\n", a...) }

// text writes paragraphs: a blank line begins a new one, an indented line is shown as written.
func (r *roff) text(s string) {
	for _, l := range strings.Split(strings.TrimRight(s, "\n"), "\n") {
		switch {
		case strings.TrimSpace(l) == "":
			r.line(".PP")
		case l[0] == ' ' || l[0] == '\t':
			r.line(".EX\n%s\n.EE", escape(l))
		default:
			r.line("%s", escape(l))
		}
	}
}

// escape keeps roff from taking text for requests: backslashes, hyphens that people copy, and what
// begins a line.
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

func manPage(c *cobra.Command, date string) string {
	var r roff
	name := pageName(c)
	r.line(`.TH %s 1 "%s" "causeway %s" "Causeway"`, strings.ToUpper(escape(name)), date, escape(c.Root().Version))
	r.line(".SH NAME\n%s \\- %s", escape(name), escape(c.Short))
	r.line(".SH SYNOPSIS")
	if c.Runnable() {
		r.line(".B %s", escape(c.UseLine()))
	} else {
		r.line(".B %s", escape(c.CommandPath()+" COMMAND"))
	}
	r.line(".SH DESCRIPTION")
	if c.Long != "" {
		r.text(c.Long)
	} else {
		r.text(c.Short + ".")
	}
	r.commands(c)
	r.flags("OPTIONS", c.NonInheritedFlags())
	r.flags("COMMON OPTIONS", c.InheritedFlags())
	if c.Example != "" {
		r.line(".SH EXAMPLES\n.EX\n%s\n.EE", escapeLines(c.Example))
	}
	if !c.HasParent() || c.Name() == "run" {
		r.exits()
	}
	r.seeAlso(c)
	return r.String()
}

func (r *roff) commands(c *cobra.Command) {
	head := false
	for _, sub := range c.Commands() {
		if sub.Hidden || sub.Name() == "help" {
			continue
		}
		if !head {
			r.line(".SH COMMANDS")
			head = true
		}
		r.line(".TP\n.BR %s (1)\n%s", escape(pageName(sub)), escape(sub.Short))
	}
}

func (r *roff) flags(title string, set *pflag.FlagSet) {
	if !set.HasAvailableFlags() {
		return
	}
	r.line(".SH %s", title)
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		term := "--" + f.Name
		if f.Shorthand != "" {
			term = "-" + f.Shorthand + ", " + term
		}
		if kind != "" {
			term += " " + kind
		}
		switch f.DefValue {
		case "", "false", "0", "0s", "[]":
		default:
			usage += " (default: " + f.DefValue + ")"
		}
		r.line(".TP\n.B %s\n%s", escape(term), escape(usage))
	})
}

func (r *roff) exits() {
	r.line(".SH EXIT STATUS")
	for _, e := range exits {
		r.line(".TP\n.B %d\n%s.", e.status, escape(e.meaning))
	}
	r.line(".PP\nA program under %s sets its own.", escape("causeway run"))
}

func (r *roff) seeAlso(c *cobra.Command) {
	var names []string
	if c.HasParent() {
		names = append(names, pageName(c.Parent()))
		for _, s := range c.Parent().Commands() {
			if !s.Hidden && s != c && s.Name() != "help" {
				names = append(names, pageName(s))
			}
		}
	}
	if len(names) == 0 {
		return
	}
	r.line(".SH SEE ALSO")
	for i, n := range names {
		end := ","
		if i == len(names)-1 {
			end = ""
		}
		r.line(".BR %s (1)%s", escape(n), end)
	}
}

func escapeLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = escape(l)
	}
	return strings.Join(lines, "\n")
}

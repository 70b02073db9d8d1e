package main

import (
	"bytes"
	"regexp"
	"strings"
)

// What a line of C has that a mistake is plausible at, and by what it is taken for. The code is as
// clang-format leaves it: one statement a line.
var cChanges = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(` < `), " <= "}, {regexp.MustCompile(` <= `), " < "}, {regexp.MustCompile(` > `), " >= "}, {regexp.MustCompile(` >= `), " > "},
	{regexp.MustCompile(` == `), " != "}, {regexp.MustCompile(` != `), " == "},
	{regexp.MustCompile(` && `), " || "}, {regexp.MustCompile(` \|\| `), " && "},
	{regexp.MustCompile(` \+ 1\b`), ""}, {regexp.MustCompile(` - 1\b`), ""},
	{regexp.MustCompile(`\+\+`), "--"},
	{regexp.MustCompile(`memory_order_seq_cst`), "memory_order_relaxed"},
}

var (
	cStatement = regexp.MustCompile(`^\t+([a-zA-Z_(*][^;{}]*);$`)
	cDeclares  = regexp.MustCompile(`^\t+(const |struct |static |extern |volatile |_Atomic |u?int|size_t|char |void |bool |unsigned |CU[a-z]+ |[a-z_]+_t )`)
	cGuard     = regexp.MustCompile(`^\t+if \((.*)\)( \{)?$`)
)

var (
	// cUnseen are statements whose absence no test of behaviour sees: how the time is passed before
	// something is looked at again, a thread's name, advice to the kernel.
	cUnseen = regexp.MustCompile(`^\t+(nanosleep|cw_pause|sched_yield|rest|prctl|madvise|va_start|va_end)\(`)
	// cTells begins a statement that only puts text together for people, on one line or several.
	cTells = regexp.MustCompile(`^\t+(cw_why\(|cw_log\(|snprintf\(why, |((case \w+|default): )?return "|\*?what = ")`)
	// cDescriptor is a descriptor's bound: 0 is none where a program has its three.
	cDescriptor = regexp.MustCompile(`\b(\w*fd|mem|file|bell)$|\b(fds?|file)\[\w+\]$`)
)

// cSites are those of a C file, within functions. Not drawn, beside cUnseen and cTells:
// declarations, locks, whether a descriptor may be 0, the bound at which one value is limited to
// another, and acquire and release, which x86 has anyway.
func cSites(file string, text []byte) (sites []site) {
	at, comment, tells := 0, false, false
	lines := bytes.SplitAfter(text, []byte("\n"))
	for n, line := range lines {
		from := at
		at += len(line)
		s := strings.TrimRight(string(line), "\n")
		was := comment
		if i := strings.LastIndex(s, "/*"); i >= 0 {
			comment = !strings.Contains(s[i:], "*/")
		} else if strings.Contains(s, "*/") {
			comment = false
		}
		said := tells || cTells.MatchString(s)
		tells = said && !strings.HasSuffix(s, ";")
		if was || comment || said || !strings.HasPrefix(s, "\t") || strings.HasPrefix(strings.TrimSpace(s), "//") || strings.Contains(s, "_Static_assert") || strings.Contains(s, "cw_log") {
			continue
		}
		next := ""
		if n+1 < len(lines) {
			next = strings.TrimSpace(string(lines[n+1]))
		}
		put := func(a, b int, by string) change {
			now := s[:a] + by + s[b:]
			return change{strings.TrimSpace(s) + "  =>  " + strings.TrimSpace(now), text, from + a, from + b, by}
		}
		var cs []change
		for _, c := range cChanges {
			for _, m := range c.what.FindAllStringIndex(s, -1) {
				if strings.HasPrefix(s[m[1]:], "0") && cDescriptor.MatchString(s[:m[0]]) && c.by != " != " && c.by != " == " {
					continue
				}
				if cLimits(s, m, next) {
					continue
				}
				cs = append(cs, put(m[0], m[1], c.by))
			}
		}
		if m := cGuard.FindStringSubmatchIndex(s); m != nil {
			cs = append(cs, put(m[2], m[3], "("+s[m[2]:m[3]]+") && 0"), put(m[2], m[3], "!("+s[m[2]:m[3]]+")"))
		}
		if m := cStatement.FindStringSubmatchIndex(s); m != nil && !cDeclares.MatchString(s) && !strings.HasPrefix(strings.TrimSpace(s), "return") && !strings.HasPrefix(strings.TrimSpace(s), "(void)") && !cUnseen.MatchString(s) &&
			!strings.Contains(s, "unlock") && !strings.Contains(s, "_lock") {
			cs = append(cs, put(m[2], m[3], "(void)0"))
		}
		if len(cs) > 0 {
			sites = append(sites, site{file, n + 1, cs})
		}
	}
	return sites
}

// cLimits reports whether a comparison only limits one value to another, at which bound nothing
// changes: a < b ? a : b, or if (a > b) with a = b on the next line.
func cLimits(s string, at []int, next string) bool {
	if op := strings.TrimSpace(s[at[0]:at[1]]); !strings.ContainsAny(op, "<>") {
		return false
	}
	x, y := s[:at[0]], s[at[1]:]
	if c, ok := strings.CutPrefix(strings.TrimSpace(x), "if ("); ok && strings.HasSuffix(y, ")") {
		return next == c+" = "+strings.TrimSuffix(y, ")")+";"
	}
	y, rest, ok := strings.Cut(y, " ? ")
	if !ok {
		return false
	}
	a, b, ok := strings.Cut(rest, " : ")
	return ok && (endsWith(x, a) && beginsWith(b, y) || a == y && endsWith(x, operand(b)))
}

// operand is the text up to what cannot be of it any more.
func operand(s string) string { return strings.TrimRight(s, ";,)") }

func endsWith(s, with string) bool {
	before, ok := strings.CutSuffix(s, with)
	return ok && (before == "" || strings.HasSuffix(before, " ") || strings.HasSuffix(before, "("))
}

func beginsWith(s, with string) bool {
	rest, ok := strings.CutPrefix(s, with)
	return ok && strings.Trim(rest, ";,) ") == ""
}

package ptxvars

import (
	"errors"
	"fmt"
	"strings"
)

// ErrHidden says that a text has variables that cannot be told by name.
var ErrHidden = errors.New("variables of this code cannot be told")

// Names lists the variables of a text that live in the GPU's memory as long as the module: global
// and constant ones that are defined there, neither managed nor textures. Bodies of functions have
// none that are not declared before them; one that has is ErrHidden.
func Names(text string) (names []string, err error) {
	for rest := text; rest != ""; {
		var statement, inner string
		var body bool
		if statement, inner, rest, body, err = cut(rest); err != nil {
			return nil, err
		}
		if body {
			if declares(inner) {
				return nil, fmt.Errorf("%w: one is declared in a function", ErrHidden)
			}
			continue
		}
		name, err := declared(statement)
		if err != nil {
			return nil, err
		}
		if name != "" {
			names = append(names, name)
		}
		if len(names) > maxNames {
			return nil, fmt.Errorf("%w: more than %d", ErrHidden, maxNames)
		}
	}
	return names, nil
}

const maxNames = 1 << 16

// cut cuts the first statement of a module off, and with it what is in the braces of a function's
// body, if it begins one.
func cut(text string) (statement, inner, rest string, body bool, err error) {
	statement, inner, body = next(text)
	if rest = inner; body {
		rest, err = behindBody(inner)
	}
	return statement, inner[:len(inner)-len(rest)], rest, body, err
}

// next cuts the first statement of a module off: up to its semicolon, or up to the brace that a
// function's body begins with. Comments are left out.
func next(text string) (statement, rest string, body bool) {
	var b strings.Builder
	depth := 0
	for i := 0; i < len(text); i++ {
		if n := skip(text[i:]); n > 0 {
			if text[i] == '"' {
				b.WriteString(text[i : i+n])
			} else {
				b.WriteByte(' ')
			}
			i += n - 1
			continue
		}
		switch ch := text[i]; {
		case ch == ';' && depth == 0:
			return b.String(), text[i+1:], false
		case ch == '{' && depth == 0 && !strings.Contains(b.String(), "="):
			return b.String(), text[i+1:], true
		case ch == '{':
			depth++
		case ch == '}' && depth > 0:
			depth--
		}
		if ch := text[i]; depth == 0 || b.Len() == 0 || ch != ' ' {
			if b.Len() < maxStatement {
				b.WriteByte(ch)
			}
		}
	}
	return b.String(), "", false
}

// maxStatement is how much of a statement is looked at: initial values follow what matters.
const maxStatement = 1 << 14

// skip is the length of the comment or text that begins here, 0 if none does.
func skip(s string) int {
	end := func(mark string, from int) int {
		if i := strings.Index(s[min(from, len(s)):], mark); i >= 0 {
			return from + i + len(mark)
		}
		return len(s)
	}
	switch {
	case strings.HasPrefix(s, "//"):
		return end("\n", 2)
	case strings.HasPrefix(s, "/*"):
		return end("*/", 2)
	case s[0] == '"':
		return end("\"", 1)
	}
	return 0
}

// behindBody is what follows the brace that ends a body.
func behindBody(text string) (string, error) {
	depth := 1
	for i := 0; i < len(text); i++ {
		if n := skip(text[i:]); n > 0 {
			i += n - 1
			continue
		}
		switch text[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return text[i+1:], nil
			}
		}
	}
	return "", fmt.Errorf("%w: a function does not end", ErrHidden)
}

// declares reports whether a body declares a variable of the module's life: a directive at the
// start of a statement, not part of an instruction.
func declares(body string) bool {
	for _, space := range []string{".global", ".const"} {
		for at := 0; ; {
			i := strings.Index(body[at:], space)
			if i < 0 {
				break
			}
			at += i + len(space)
			before := strings.TrimRight(body[:at-len(space)], " \t\r\n")
			if before == "" || strings.ContainsAny(before[len(before)-1:], ";{}") {
				return true
			}
		}
	}
	return false
}

// declared is the name of the variable that a statement of a module defines, "" if it defines none
// of those that Names lists.
func declared(statement string) (string, error) {
	head, _, valued := strings.Cut(statement, "=")
	words := strings.Fields(strings.NewReplacer("[", " [", "(", " (", ".attribute", " .attribute").Replace(head))
	kept, lasting := false, false
	for _, w := range words {
		switch w {
		case ".global", ".const":
			lasting = true
		case ".extern", ".texref", ".surfref", ".samplerref", ".func", ".entry":
			kept = true
		}
	}
	if !lasting || kept || strings.Contains(head, ".managed") {
		return "", nil
	}
	if i := strings.IndexByte(head, '['); i >= 0 {
		if strings.Contains(head[i:], ",") {
			return "", fmt.Errorf("%w: several are declared at once", ErrHidden)
		}
		head = head[:i]
	}
	if strings.Contains(head, ",") && !valued {
		return "", fmt.Errorf("%w: several are declared at once", ErrHidden)
	}
	words = strings.Fields(head)
	if len(words) == 0 {
		return "", fmt.Errorf("%w: a statement with no name", ErrHidden)
	}
	name := words[len(words)-1]
	if strings.ContainsAny(name, ".,()") {
		return "", fmt.Errorf("%w: %q is not understood", ErrHidden, name)
	}
	return name, nil
}

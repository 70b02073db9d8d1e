package idl

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// EntryMode says who implements an exported symbol.
type EntryMode string

// Entry modes.
const (
	ModeHand   EntryMode = "hand"   // cwi_SYMBOL, hand-written; reaches the worker where it must
	ModeLocal  EntryMode = "local"  // cwi_SYMBOL, hand-written; never leaves the guest
	ModeRefuse EntryMode = "refuse" // answers CUDA_ERROR_NOT_SUPPORTED and says so
)

// Theme groups entries for the coverage page; Reason is why its refused entries are refused.
type Theme struct {
	Pos
	Name, Title, Reason string
}

// Entry is one exported symbol, with its per-thread twin if it has one:
//
//	entry SYMBOL SINCE hand|local|refuse [ptsz|ptds] [base NAME] [as NAME] [field NAME] [free|alive] "PARAMETERS" [reason "WHY"]
//
// SINCE is the CUDA version from which cuGetProcAddress finds it under its base name (the symbol
// without _vN); 0: never. as: the hand-written function of another symbol does. free: callable
// before cuInit. alive: still works when a context is poisoned. field: generated; gives that field
// of the device (NVML only).
type Entry struct {
	Pos
	Symbol string
	Since  int
	Mode   EntryMode
	Twin   string // ptsz, ptds or empty
	Base   string
	As     string // symbol whose cwi_ function is called; Symbol if not said
	Field  string // field of the device that the entry gives, or empty
	Guard  string // free, alive or empty
	Theme  string
	Reason string
	Params []Param
}

// Param is one C parameter; Type is normalised ("const void *", "CUdeviceptr *", "size_t").
type Param struct {
	Type, Name string
}

// Symbols lists the exported names: plain first, then the per-thread twin.
func (e *Entry) Symbols() []string {
	if e.Twin == "" {
		return []string{e.Symbol}
	}
	return []string{e.Symbol, e.Symbol + "_" + e.Twin}
}

func (f *File) addTheme(l line) error {
	w := l.words
	if len(w) != 3 && (len(w) != 5 || w[3] != "refuse") || !identifier(w[1]) {
		return l.Errorf(`want theme NAME "title" [refuse "reason"]`)
	}
	t := Theme{Pos: l.Pos, Name: w[1], Title: w[2]}
	if len(w) == 5 {
		t.Reason = w[4]
	}
	f.Themes = append(f.Themes, t)
	return nil
}

var version = regexp.MustCompile(`_v[0-9]+$`)

func (f *File) addEntry(l line) (func(line) error, error) {
	w := l.words
	if len(f.Themes) == 0 {
		return nil, l.Errorf("entry before any theme")
	}
	if len(w) < 5 || !identifier(w[1]) {
		return nil, l.Errorf(`want entry SYMBOL SINCE MODE ... "PARAMETERS"`)
	}
	theme := f.Themes[len(f.Themes)-1]
	e := Entry{Pos: l.Pos, Symbol: w[1], Mode: EntryMode(w[3]), Theme: theme.Name, Base: version.ReplaceAllString(w[1], ""), As: w[1]}
	var err error
	if e.Since, err = strconv.Atoi(w[2]); err != nil || e.Since < 0 {
		return nil, l.Errorf("%s: bad version %s", e.Symbol, w[2])
	}
	params := false
	for w = w[4:]; len(w) > 0; w = w[1:] {
		switch {
		case len(w) > 1 && e.option(w[0], w[1]):
			w = w[1:]
		case w[0] == "ptsz" || w[0] == "ptds":
			e.Twin = w[0]
		case w[0] == "free" || w[0] == "alive":
			e.Guard = w[0]
		case !params:
			params = true
			if e.Params, err = parseParams(w[0]); err != nil {
				return nil, l.Errorf("%s: %w", e.Symbol, err)
			}
		default:
			return nil, l.Errorf("%s: unknown word %q", e.Symbol, w[0])
		}
	}
	if !params {
		return nil, l.Errorf("%s: no parameters; write \"void\" for none", e.Symbol)
	}
	if e.Mode == ModeRefuse && e.Reason == "" {
		e.Reason = theme.Reason
	}
	f.Entries = append(f.Entries, e)
	return nil, nil
}

// option sets what a word and its argument say; false if the word takes none.
func (e *Entry) option(word, arg string) bool {
	switch word {
	case "base":
		e.Base = arg
	case "as":
		e.As = arg
	case "field":
		e.Field = arg
	case "reason":
		e.Reason = arg
	default:
		return false
	}
	return true
}

var errParams = errors.New("parameters are TYPE NAME, TYPE NAME ... or void")

// parseParams splits a C parameter list of the simple shapes that the driver API has.
func parseParams(s string) ([]Param, error) {
	if strings.TrimSpace(s) == "void" {
		return nil, nil
	}
	var out []Param
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		i := strings.LastIndexAny(part, " *")
		if i < 0 || !identifier(part[i+1:]) {
			return nil, errParams
		}
		p := Param{Type: NormalType(part[:i+1]), Name: part[i+1:]}
		for _, w := range strings.Fields(strings.ReplaceAll(p.Type, "*", " ")) {
			if !identifier(w) {
				return nil, errParams
			}
		}
		if p.Type == "" || strings.HasPrefix(p.Type, "*") {
			return nil, errParams
		}
		if slices.ContainsFunc(out, func(q Param) bool { return q.Name == p.Name }) {
			return nil, fmt.Errorf("two parameters are called %s", p.Name)
		}
		out = append(out, p)
	}
	return out, nil
}

// NormalType writes a C type one way: single blanks, stars together behind one blank.
func NormalType(t string) string {
	t = strings.Join(strings.Fields(strings.ReplaceAll(t, "*", " * ")), " ")
	return strings.ReplaceAll(t, "* *", "**")
}

// checkEntries verifies what the generator relies on.
func (f *File) checkEntries() error {
	var errs []error
	for i := range f.Entries {
		e := &f.Entries[i]
		switch e.Mode {
		case ModeHand, ModeLocal:
			if !slices.ContainsFunc(f.Entries, func(o Entry) bool { return o.Symbol == e.As && o.Mode == e.Mode }) {
				errs = append(errs, e.Errorf("%s: there is no entry %s of its mode", e.Symbol, e.As))
			}
		case ModeRefuse:
			if e.Reason == "" {
				errs = append(errs, e.Errorf("%s is refused without a reason", e.Symbol))
			}
		default:
			errs = append(errs, e.Errorf("%s: mode %q is none of hand, local, refuse", e.Symbol, e.Mode))
		}
	}
	return errors.Join(errs...)
}

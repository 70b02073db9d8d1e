package idl

import (
	"errors"
	"slices"
	"strings"
)

// Bind says that the worker calls an entry of the real driver, and how its binding takes the
// parameters whose C type does not say it:
//
//	bind SYMBOL [call|hidden|hand] [or SYMBOL] [as NAME] [has] ["PARAMETER KIND [WORD]..., ..."]
//
// call: the method returns a call to be made later, on another thread too. hidden: only the
// bindings' own package calls it. hand: the address alone, for a trampoline written by hand. or: an
// older entry of the same parameters, where a driver lacks the first. as: the method's name. has: a
// method tells whether the driver has it. Kinds are those of cuda/gen/bind_kinds.go.
type Bind struct {
	Pos
	Symbol, Or, Name string
	Call, Hidden     bool
	Hand, Has        bool
	Kinds            []BindKind
	Entry            *Entry // of Symbol
}

// BindKind is how a binding takes one parameter.
type BindKind struct {
	Param, Kind string
	Words       []string // other parameters and numbers that the kind wants
}

// Seal names a struct of parameters whose fields only the bindings' own package writes.
type Seal struct {
	Pos
	Name string
}

func (f *File) addBind(l line) error {
	w := l.words
	if len(w) < 2 || !identifier(w[1]) {
		return l.Errorf(`want bind SYMBOL ... ["PARAMETER KIND ..."]`)
	}
	b := Bind{Pos: l.Pos, Symbol: w[1]}
	for w = w[2:]; len(w) > 0; w = w[1:] {
		switch {
		case w[0] == "call":
			b.Call = true
		case w[0] == "hidden":
			b.Hidden = true
		case w[0] == "hand":
			b.Hand = true
		case w[0] == "has":
			b.Has = true
		case len(w) > 1 && w[0] == "or" && identifier(w[1]):
			b.Or, w = w[1], w[1:]
		case len(w) > 1 && w[0] == "as" && identifier(w[1]):
			b.Name, w = w[1], w[1:]
		case strings.Contains(w[0], " "):
			for part := range strings.SplitSeq(w[0], ",") {
				k := strings.Fields(part)
				if len(k) < 2 {
					return l.Errorf("%s: %q is not PARAMETER KIND", b.Symbol, part)
				}
				b.Kinds = append(b.Kinds, BindKind{k[0], k[1], k[2:]})
			}
		default:
			return l.Errorf("%s: unknown word %q", b.Symbol, w[0])
		}
	}
	if b.Name == "" {
		b.Name = version.ReplaceAllString(strings.TrimPrefix(b.Symbol, "cu"), "")
	}
	f.Binds = append(f.Binds, b)
	return nil
}

func (f *File) addSeal(l line) error {
	if len(l.words) != 2 || !identifier(l.words[1]) {
		return l.Errorf("want seal STRUCT")
	}
	f.Seals = append(f.Seals, Seal{l.Pos, l.words[1]})
	return nil
}

// checkBinds finds the entries of bindings and what they say of parameters that there are.
func (f *File) checkBinds() error {
	var errs []error
	find := func(b *Bind, symbol string) *Entry {
		i := slices.IndexFunc(f.Entries, func(e Entry) bool { return e.Symbol == symbol })
		if i < 0 {
			errs = append(errs, b.Errorf("there is no entry %s", symbol))
			return nil
		}
		return &f.Entries[i]
	}
	for i := range f.Binds {
		b := &f.Binds[i]
		if b.Or != "" {
			find(b, b.Or)
		}
		if b.Entry = find(b, b.Symbol); b.Entry == nil {
			continue
		}
		for _, k := range b.Kinds {
			if !slices.ContainsFunc(b.Entry.Params, func(p Param) bool { return p.Name == k.Param }) {
				errs = append(errs, b.Errorf("%s has no parameter %s", b.Symbol, k.Param))
			}
		}
	}
	return errors.Join(errs...)
}

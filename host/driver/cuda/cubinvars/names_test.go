package cubinvars

import (
	"errors"
	"slices"
	"testing"

	"causeway/host/driver/cuda/cubinvars/cubintest"
)

// TestNames: variables of global memory and constants are listed, managed ones are not, and one
// without a name is refused.
func TestNames(t *testing.T) {
	for what, c := range map[string]struct {
		img  []byte
		want []string
	}{
		"plain ones":        {cubintest.Variables(), []string{"x", "y", "c"}},
		"beside managed":    {example(whole), []string{"z"}},
		"no variables":      {build(nil), nil},
		"many names":        {plain(maxVars, 1), slices.Repeat([]string{"x"}, maxVars)},
		"one too many":      {plain(maxVars+1, 1), nil},
		"one without names": {plain(1, 0), nil},
	} {
		names, err := Names(c.img)
		if refused := what == "one too many" || what == "one without names"; errors.Is(err, ErrUnsupported) != refused || !slices.Equal(names, c.want) {
			t.Errorf("%s: %d names, %v", what, len(names), err)
		}
	}
}

// plain has so many variables called x, or nothing.
func plain(count int, name uint32) []byte {
	return build([]part{
		{Name: ".strtab", Kind: cubintest.Strings, Data: []byte("\x00x\x00")},
		{Name: ".nv.global", Kind: kindNoBits, Size: 8, Align: 8},
		{Name: ".symtab", Kind: kindSymbols, Link: 1, Data: slices.Repeat(sym(name, 0, 2, 0, 1), count)},
	})
}

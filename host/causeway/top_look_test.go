package main

import (
	"testing"

	"causeway/host/report"
)

// TestLook: what the environment says of a terminal.
func TestLook(t *testing.T) {
	for _, c := range []struct {
		env    map[string]string
		colour bool
		utf8   bool
	}{
		{nil, true, false},
		{map[string]string{"NO_COLOR": "1", "LANG": "en_US.UTF-8"}, false, true},
		{map[string]string{"NO_COLOR": "", "LANG": "C.utf8"}, true, true},
		{map[string]string{"LANG": "en_US.UTF-8", "LC_ALL": "C"}, true, false},
		{map[string]string{"LANG": "de_DE@euro", "LC_CTYPE": "C.UTF-8"}, true, true},
	} {
		env := func(name string) string { return c.env[name] }
		if _, colour := lookOf(env)[report.Good]; colour != c.colour || isUTF8(env) != c.utf8 {
			t.Errorf("%v: colours %v, UTF-8 %v", c.env, colour, isUTF8(env))
		}
	}
}

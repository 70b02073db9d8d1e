package qmp_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"causeway/host/qmp"
	"causeway/host/qmp/qmptest"
)

// TestMigrate: a migration ends as QEMU says, and is called off with its context.
func TestMigrate(t *testing.T) {
	for name, c := range map[string]struct {
		says []string
		want string
	}{
		"moves":      {[]string{"setup", "active", "device", "completed"}, ""},
		"fails":      {[]string{"active", "failed"}, "as the test says"},
		"called off": {[]string{"active"}, "it was called off"},
	} {
		t.Run(name, func(t *testing.T) {
			q := &qmptest.QEMU{Migration: c.says}
			m := dial(t, q)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var done, total uint64
			err := m.Migrate(ctx, qmp.Migration{URI: "tcp:hostb:4444", Bandwidth: 1 << 20, Downtime: time.Second}, func(d, n uint64) {
				done, total = d, n
				if len(c.says) == 1 {
					cancel()
				}
			})
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, qmp.ErrMigration) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v", err)
			}
			if done != 60 || total != 100 {
				t.Errorf("%d of %d", done, total)
			}
			_, _, calls := q.Has()
			if want := []string{"migrate-set-capabilities", "migrate-set-parameters", "migrate"}; !slices.Equal(calls[:3], want) {
				t.Errorf("%q", calls)
			}
		})
	}
	q := &qmptest.QEMU{Refuse: map[string]string{"migrate": "no such place"}}
	if err := dial(t, q).Migrate(t.Context(), qmp.Migration{URI: "x"}, nil); err == nil || !strings.Contains(err.Error(), "no such place") {
		t.Errorf("%v", err)
	}
}

// TestHere: only a VM that QEMU has may move.
func TestHere(t *testing.T) {
	for state, here := range map[string]bool{"": true, "paused": true, "postmigrate": false, "finish-migrate": false, "inmigrate": false} {
		err := dial(t, &qmptest.QEMU{State: state}).Here()
		if here != (err == nil) || !here && (!errors.Is(err, qmp.ErrNotHere) || !strings.Contains(err.Error(), state)) {
			t.Errorf("%q: %v", state, err)
		}
	}
}

package daemon_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon"
	"causeway/host/daemon/daemontest"
)

// TestPromises: limits of memory that change are promises like those of the first day. What a vGPU
// holds itself does not stand in its way, what others hold does, and one without a limit is no way
// around.
func TestPromises(t *testing.T) {
	h := shared(t).start()
	first := api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Memory: 512 << 20}}
	second := api.Spec{VM: "vm2", Name: "gpu0"}
	h.ensure(first)
	h.ensure(second)
	set := func(s api.Spec, text string) error {
		_, err := h.c.SetLimits(t.Context(), s.VM, s.Name, change(t, text))
		return err
	}
	good := func(s api.Spec, text string) {
		t.Helper()
		if err := set(s, text); err != nil {
			t.Errorf("%s of %s: %v", text, s.Key(), err)
		}
	}
	refused(t, set(second, `{"memory":"513MiB"}`), 507, "513 MiB do not fit")
	good(second, `{"memory":"512MiB"}`)
	refused(t, set(first, `{"memory":"513MiB"}`), 507, "do not fit")
	good(first, `{"memory":"256MiB"}`)
	good(second, `{"memory":"768MiB"}`)
	refused(t, set(first, `{"memory":"257MiB"}`), 507, "do not fit")
	good(second, `{"memory":"none"}`)
	good(first, `{"memory":"1GiB"}`)
	refused(t, set(second, `{"memory":"1MiB"}`), 507, "do not fit")
	if got := h.vgpu(second).Spec.Memory; got != 0 {
		t.Errorf("a refusal left a limit of %d", got)
	}
}

// TestRoomBesideOthers: the driver counts what a vGPU holds among what is in use, and a higher
// limit of its own is judged without that.
func TestRoomBesideOthers(t *testing.T) {
	m := daemontest.Soft(1 << 30)
	m.Change(func(r *daemon.Reading) { r.GPUs[0].Used = 900 << 20 })
	h := newHost(t, m).start()
	first := api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Memory: 64 << 20}}
	h.ensure(first)
	h.tell(first, api.Status{Connected: true, Memory: 60 << 20, Limits: api.Limits{Memory: 64 << 20}})
	if _, err := h.c.SetLimits(t.Context(), "vm1", "gpu0", change(t, `{"memory":"184MiB"}`)); err != nil {
		// 840 MiB are others'
		t.Error(err)
	}
	_, err := h.c.SetLimits(t.Context(), "vm1", "gpu0", change(t, `{"memory":"185MiB"}`))
	refused(t, err, 507, "do not fit")
	// Which it cannot have: 716 MiB are others' at least.
	h.tell(first, api.Status{Connected: true, Memory: 800 << 20, Limits: api.Limits{Memory: 184 << 20}})
	_, err = h.c.SetLimits(t.Context(), "vm1", "gpu0", change(t, `{"memory":"309MiB"}`))
	refused(t, err, 507, "do not fit")
}

// TestMisplacedRecords: a record in another vGPU's place, or of another VM, is nobody's.
func TestMisplacedRecords(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).start()
	v := h.ensure(one)
	file := filepath.Join(h.cfg.RunDir, one.VM, one.Name+".json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	about := func(vm, name string) []byte {
		var r map[string]any
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatal(err)
		}
		spec := r["spec"].(map[string]any)
		spec["vm"], spec["name"] = vm, name
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	h.stop()
	other := filepath.Join(h.cfg.RunDir, "vm9")
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, record := range map[string][]byte{
		filepath.Join(other, one.Name+".json"):           about(one.VM, one.Name),
		filepath.Join(other, "gpu1.json"):                about("vm8", "gpu1"),
		filepath.Join(h.cfg.RunDir, one.VM, "gpu7.json"): about(one.VM, one.Name),
		filepath.Join(h.cfg.RunDir, one.VM, "gpu8.json"): about(one.VM, "gpu9"),
	} {
		if err := os.WriteFile(name, record, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h.start()
	list, err := h.c.VGPUs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for i := range list {
		keys = append(keys, list[i].Spec.Key())
	}
	if strings.Join(keys, " ") != one.Key() || list[0].PID != v.PID || list[0].State == api.Lost {
		t.Errorf("found %v", keys)
	}
	if !runs(v.PID) {
		t.Error("a copy of its record ended the device process")
	}
}

// TestRoomBesideVGPUs: what another vGPU holds is a part of its promise, not taken a second time.
func TestRoomBesideVGPUs(t *testing.T) {
	m := daemontest.Soft(1 << 30)
	m.Change(func(r *daemon.Reading) { r.GPUs[0].Used = 250 << 20 })
	h := newHost(t, m).start()
	first := api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Memory: 300 << 20}}
	h.ensure(first)
	h.tell(first, api.Status{Connected: true, Memory: 250 << 20, Limits: first.Limits})
	h.vgpu(first) // its account is read
	_, err := h.c.Ensure(t.Context(), api.Spec{VM: "vm2", Name: "gpu0", Limits: api.Limits{Memory: 725 << 20}}.Wish())
	refused(t, err, 507, "do not fit")
	h.ensure(api.Spec{VM: "vm2", Name: "gpu0", Limits: api.Limits{Memory: 724 << 20}})
}

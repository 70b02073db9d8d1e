package daemon_test

import (
	"net/http"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
)

// TestPlace: what a vGPU is changes while nobody uses it, by another device process, whichever part
// of it a wish names; while it is in use the wish is refused, and the refusal says what it is. What
// a wish does not name, or names as it is, stays.
func TestPlace(t *testing.T) {
	t.Parallel()
	h := newHost(t, daemontest.Soft(1<<30)).start()
	yes, no := true, false
	for name, c := range map[string]struct {
		wish, back api.Wish
		as         string
	}{
		"gpu":        {api.Wish{GPU: "soft"}, api.Wish{GPU: "any"}, "GPU soft"},
		"migratable": {api.Wish{Migratable: &yes}, api.Wish{Migratable: &no}, "GPU any, migratable"},
		"programs":   {api.Wish{Programs: &yes}, api.Wish{Programs: &no}, "GPU any, for programs of this host"},
		"owner":      {api.Wish{Owner: "1"}, api.Wish{Owner: "0"}, "GPU any, owner 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := api.Spec{VM: name, Name: "gpu0"}
			for _, w := range []*api.Wish{&c.wish, &c.back} {
				w.VM, w.Name = s.VM, s.Name
			}
			was := h.ensure(s)
			ask := func(w api.Wish, connected bool) (api.VGPU, error) {
				h.tell(s, api.Status{Connected: connected})
				return h.c.Ensure(t.Context(), w)
			}
			_, err := ask(c.wish, true)
			refused(t, err, http.StatusConflict, "detach it first", "in use, as GPU any")
			if v, err := ask(c.back, true); name != "owner" && (err != nil || v.PID != was.PID || v.Created) {
				// An owner it did not have.
				t.Errorf("asked for as it is: %v, process %d, then %d", err, was.PID, v.PID)
			}
			v, err := ask(c.wish, false)
			if err != nil || v.PID == was.PID || runs(was.PID) {
				t.Fatalf("not in use: %v, process %d, then %d", err, was.PID, v.PID)
			}
			if again, err := ask(s.Wish(), true); err != nil || again.PID != v.PID {
				t.Errorf("asked for without it: %v, process %d, then %d", err, v.PID, again.PID)
			}
			if again, err := ask(c.wish, true); err != nil || again.PID != v.PID {
				t.Errorf("asked for as it is now: %v, process %d, then %d", err, v.PID, again.PID)
			}
			_, err = ask(c.back, true)
			refused(t, err, http.StatusConflict, c.as)
		})
	}
}

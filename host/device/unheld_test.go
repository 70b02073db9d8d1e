package device_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/limit"
	"causeway/host/schedule"
)

// TestSchedulerHangs: a scheduler that no longer answers, while its socket still takes requests,
// holds nothing new: a share or a cap is refused, and what was stays; taking a cap away and what it
// has nothing to do with is no matter of its.
func TestSchedulerHangs(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for n := 0; ; n++ {
			c, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			served.Go(func() {
				defer c.Close()
				b := make([]byte, 1<<16)
				// Whoever joins first is welcome; nothing is answered after that.
				for asked := n; ; asked++ {
					if k, err := c.Read(b); err != nil || k == 0 {
						return
					}
					if asked == 0 {
						_, _ = c.Write([]byte("{}"))
					}
				}
			})
		}
	})
	log := slog.New(slog.DiscardHandler)
	v := bootWith(t, func(o *device.Options) {
		o.Limits.Cap = 20
		o.Scheduler = func(l api.Limits) (*schedule.Membership, error) {
			return schedule.Join(socket, schedule.Member{GPU: "GPU-1", Key: "vm/gpu0", Weight: l.Share, Cap: l.Cap}, log), nil
		}
	})
	t.Cleanup(served.Wait)
	t.Cleanup(func() { _ = ln.Close() })
	was := v.device.Limits()
	for name, text := range map[string]string{"a cap": `{"cap":50}`, "a share": `{"share":300}`, "a share with memory": `{"share":300,"memory":1073741824}`} {
		var c api.Change
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		if now, err := v.device.SetLimits(c); !errors.Is(err, device.ErrUnheld) || now != was || v.device.Limits() != was {
			t.Errorf("%s: %v, %+v", name, err, v.device.Limits())
		}
	}
	none, sessions := limit.Cap(0), limit.Sessions(3)
	if now, err := v.device.SetLimits(api.Change{Cap: &none, Sessions: &sessions}); err != nil || now.Cap != 0 || now.Sessions != 3 {
		t.Error(now, err)
	}
}

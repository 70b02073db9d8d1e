package daemontest

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"causeway/host/api"
	"causeway/host/worker/link"
	"causeway/remote/sys"
)

// Heard is what a fake device process of a lease says on each connection that is handed to it,
// before it says what it hears.
const Heard = "heard "

// serveLease takes connections that are handed over, as a device process of a lease does.
func (d *device) serveLease(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		_, files, err := sys.ReceivePacket(c.(*net.UnixConn), make([]byte, 64), make([]byte, sys.RightsRoom(1)))
		_ = c.Close()
		if err != nil || len(files) != 1 {
			sys.CloseAll(files)
			continue
		}
		f := os.NewFile(uintptr(files[0]), "program")
		conn, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			continue
		}
		d.mu.Lock()
		d.status.Opened++
		d.status.Sessions = append(d.status.Sessions, api.Session{ID: d.status.Opened})
		d.mu.Unlock()
		_, _ = conn.Write([]byte(Heard))
		go func() {
			defer conn.Close()
			for b := make([]byte, 64); ; {
				n, err := conn.Read(b)
				if err != nil {
					return
				}
				_, _ = conn.Write(b[:n])
			}
		}()
	}
}

// told answers a PUT whose body the device's account shows from then on, as set has it.
func told[T any](d *device, set func(*api.Status, *T)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var said T
		_ = json.NewDecoder(r.Body).Decode(&said)
		d.mu.Lock()
		defer d.mu.Unlock()
		set(&d.status, &said)
		_, _ = w.Write([]byte("{}"))
	}
}

// handedOver is told of hand-overs. That none may take over the lease any more waits as long as
// there is the file of HoldEnv; FILE.held says that it does.
func (d *device) handedOver() http.HandlerFunc {
	note, hold := told(d, showHandover), os.Getenv(HoldEnv)
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var h api.Handover
		_ = json.Unmarshal(body, &h)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if h == (api.Handover{}) {
			held(r, hold)
		}
		note(w, r)
	}
}

// otherLease is told of another lease, which waits as long as there is the file of HoldRelayEnv;
// FILE.held says that it does. Who does not wait for the answer has not told it.
func (d *device) otherLease() http.HandlerFunc {
	note, hold := told(d, showRelay), os.Getenv(HoldRelayEnv)
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // all of it, so that the end of who asks is seen
		r.Body = io.NopCloser(bytes.NewReader(body))
		if held(r, hold); r.Context().Err() == nil {
			note(w, r)
		}
	}
}

// held waits as long as there is the file, and who asks.
func held(r *http.Request, hold string) {
	for hold != "" && r.Context().Err() == nil {
		if _, err := os.Stat(hold); err != nil {
			return
		}
		_ = appendLine(hold + ".held")
		time.Sleep(5 * time.Millisecond)
	}
}

// What it was told of its GPU server, and which host may take over the lease, are its account of
// limits that do not hold, why none may that of how a pre-copy ended; the lease with which it goes
// on is its GPU.
func showUpstream(st *api.Status, s *api.UpstreamState) { st.Unheld = s.Why }
func showHandover(st *api.Status, h *api.Handover) {
	st.Unheld, st.Heir, st.CopyEnd = h.Host, h.Host, h.Why
}
func showRelay(st *api.Status, to *link.Relay) { st.GPU = to.Lease.String() }

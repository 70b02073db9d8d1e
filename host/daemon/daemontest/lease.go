package daemontest

import (
	"encoding/json"
	"net"
	"net/http"
	"os"

	"causeway/host/api"
	"causeway/host/worker/link"
	"causeway/remote/sys"
)

// Heard is what a fake device process of a lease says on each connection that is handed to it, before it says what it hears.
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

// setUpstream says what it was told of its GPU server as its account of limits that do not hold.
func (d *device) setUpstream(w http.ResponseWriter, r *http.Request) {
	var s api.UpstreamState
	_ = json.NewDecoder(r.Body).Decode(&s)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status.Unheld = s.Why
	_, _ = w.Write([]byte("{}"))
}

// setHandover says which host may take over the lease as setUpstream does, setRelay with which lease the device goes on as its GPU.
func (d *device) setHandover(w http.ResponseWriter, r *http.Request) {
	var h api.Handover
	_ = json.NewDecoder(r.Body).Decode(&h)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status.Unheld = h.Host
	_, _ = w.Write([]byte("{}"))
}

func (d *device) setRelay(w http.ResponseWriter, r *http.Request) {
	var to link.Relay
	_ = json.NewDecoder(r.Body).Decode(&to)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status.GPU = to.Lease.String()
	_, _ = w.Write([]byte("{}"))
}

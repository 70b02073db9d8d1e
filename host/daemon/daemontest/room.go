package daemontest

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"causeway/host/api"
)

// serveRoom is what a fake device process does about room: a session of it needs some, gets it, and
// gives it up, as PUT /fake/room has said.
func (d *device) serveRoom(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/room", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("wait") != "" {
			time.Sleep(10 * time.Millisecond)
		}
		d.writeRoom(w)
	})
	mux.HandleFunc("PUT /v1/room", func(w http.ResponseWriter, r *http.Request) {
		var c api.RoomChange
		_ = json.NewDecoder(r.Body).Decode(&c)
		d.mu.Lock()
		if c.Room != nil {
			d.room.Room = max(*c.Room, 1)
		}
		d.room.Needs = slices.DeleteFunc(d.room.Needs, func(n api.Need) bool {
			denied := slices.Contains(c.Deny, n.Session)
			if denied {
				d.status.Swaps.Denied++
			}
			return denied
		})
		for len(d.room.Needs) > 0 && d.room.Used+d.room.Needs[0].Bytes <= d.room.Room {
			n := d.room.Needs[0]
			d.room.Used, d.room.Needs = d.room.Used+n.Bytes, d.room.Needs[1:]
			d.room.Sessions = append(d.room.Sessions, api.RoomSession{ID: n.Session, Bytes: n.Bytes, Here: time.Hour, Idle: time.Hour})
		}
		d.mu.Unlock()
		d.writeRoom(w)
	})
	mux.HandleFunc("POST /v1/suspend", func(w http.ResponseWriter, r *http.Request) {
		var what struct {
			Session uint64 `json:"session"`
			Away    bool   `json:"away"`
		}
		_ = json.NewDecoder(r.Body).Decode(&what)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.room.Sessions = slices.DeleteFunc(d.room.Sessions, func(s api.RoomSession) bool {
			gone := s.ID == what.Session && what.Away
			if gone {
				d.room.Used -= s.Bytes
				d.status.Swaps.Out++
			}
			return gone
		})
	})
	mux.HandleFunc("PUT /fake/room", func(_ http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		_ = json.NewDecoder(r.Body).Decode(&d.room)
	})
}

func (d *device) writeRoom(w http.ResponseWriter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = json.NewEncoder(w).Encode(d.room)
}

package remote_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"causeway/remote"
)

func TestPreface(t *testing.T) {
	lease := remote.NewLeaseID()
	if lease.IsZero() || lease == remote.NewLeaseID() {
		t.Fatal("leases are not drawn")
	}
	for _, p := range []remote.Preface{{}, {Lease: lease, Session: remote.NewSessionID()}, {Lease: lease, Session: remote.NewSessionID(), Again: true}, {Lease: lease, Session: remote.NewSessionID(), Ready: true}} {
		b := p.Encode()
		want := "CWSESS"
		switch {
		case p.Lease.IsZero():
			want = "CWCTRL"
		case p.Again:
			want = "CWAGAN"
		case p.Ready:
			want = "CWREDY"
		}
		if len(b) != remote.PrefaceSize || !strings.HasPrefix(string(b), want+"\x00\x03") {
			t.Errorf("%+v is sent as %x", p, b)
		}
		in := bytes.NewReader(append(b, "what follows"...))
		if got, err := remote.ReadPreface(in); err != nil || got != p || in.Len() != len("what follows") {
			t.Errorf("%+v came as %+v, %v, with %d bytes left", p, got, err, in.Len())
		}
	}
}

func TestPrefaceRefused(t *testing.T) {
	good := string(remote.Preface{Lease: remote.NewLeaseID(), Session: remote.NewSessionID()}.Encode())
	for name, b := range map[string]string{
		"nothing": "", "short": good[:39], "something else": "GET / HTTP/1.1\r\nHost: gpu1 and all that is asked", "another version": good[:7] + "\x01" + good[8:],
		"a lease without a session": good[:24] + strings.Repeat("\x00", 16), "control of a session": "CWCTRL\x00\x03" + strings.Repeat("\x00", 16) + good[24:],
		"control with a lease": "CWCTRL" + good[6:], "ready without a lease": "CWREDY\x00\x03" + strings.Repeat("\x00", 32), "a session without": "CWSESS\x00\x03" + strings.Repeat("\x00", 32),
	} {
		if p, err := remote.ReadPreface(strings.NewReader(b)); !errors.Is(err, remote.ErrPreface) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	if _, err := remote.ParsePreface([]byte(good[:7] + "\x02" + good[8:])); !errors.Is(err, remote.ErrVersion) || !strings.Contains(err.Error(), "version 2, where this host speaks 3") {
		t.Errorf("another version: %v", err)
	}
	if _, err := remote.ParsePreface([]byte(good + "x")); !errors.Is(err, remote.ErrPreface) {
		t.Errorf("too long: %v", err)
	}
}

func TestLeaseID(t *testing.T) {
	id := remote.NewLeaseID()
	b, err := json.Marshal(map[string]remote.LeaseID{"lease": id})
	if err != nil || !strings.Contains(string(b), id.String()) {
		t.Fatal(string(b), err)
	}
	var back map[string]remote.LeaseID
	if err := json.Unmarshal(b, &back); err != nil || back["lease"] != id {
		t.Error(back, err)
	}
	for _, s := range []string{"", "00", strings.Repeat("x", 32), strings.Repeat("0", 33)} {
		if err := new(remote.LeaseID).UnmarshalText([]byte(s)); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}

func FuzzPreface(f *testing.F) {
	f.Add(remote.Preface{}.Encode())
	f.Add(remote.Preface{Lease: remote.LeaseID{1, 2, 3}, Session: remote.SessionID{4}}.Encode())
	f.Add(remote.Preface{Lease: remote.LeaseID{1, 2, 3}, Session: remote.SessionID{4}, Again: true}.Encode())
	f.Add(remote.Preface{Lease: remote.LeaseID{1, 2, 3}, Session: remote.SessionID{4}, Ready: true}.Encode())
	f.Add([]byte("CWSESS\x00\x01................................"))
	f.Add([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := remote.ParsePreface(b)
		if err != nil {
			if !errors.Is(err, remote.ErrPreface) {
				t.Errorf("unexpected kind of error: %v", err)
			}
			return
		}
		if !bytes.Equal(p.Encode(), b) {
			t.Errorf("%x is %+v", b, p)
		}
	})
}

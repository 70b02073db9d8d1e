package remote_test

import (
	"errors"
	"strings"
	"testing"

	"causeway/remote"
)

func TestHello(t *testing.T) {
	in := remote.Hello{Type: remote.MsgRegion, Region: 7, Va: 0x6a0000000000, Size: 1 << 20, Pid: 4, Status: 5, Flags: 6, Offset: 1 << 21}
	out, text, err := remote.ParseHello(remote.FormatHello(in, "why"))
	in.Magic, in.Version, in.TextLen = remote.HelloMagic, remote.ProtocolVersion, 3
	if err != nil || out != in || text != "why" {
		t.Errorf("%+v, %q, %v", out, text, err)
	}
	if _, text, err := remote.ParseHello(remote.FormatHello(in, strings.Repeat("x", 5000))); err != nil || len(text) != remote.MaxText {
		t.Errorf("text of %d bytes, %v", len(text), err)
	}
}

func FuzzParseHello(f *testing.F) {
	f.Add(remote.FormatHello(remote.Hello{Type: remote.MsgHello, Size: remote.Region0Size}, ""))
	f.Add(remote.FormatHello(remote.Hello{Type: remote.MsgWelcome, Status: 19}, "no GPU"))
	f.Add([]byte("CWS1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, text, err := remote.ParseHello(b)
		if err != nil {
			if !errors.Is(err, remote.ErrProtocol) {
				t.Errorf("unexpected kind of error: %v", err)
			}
			return
		}
		if len(text) > 3*remote.MaxText || h.Magic != remote.HelloMagic {
			t.Errorf("%+v, %d bytes of text", h, len(text))
		}
	})
}

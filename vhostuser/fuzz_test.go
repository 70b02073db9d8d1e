package vhostuser_test

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
)

// FuzzMessages sends a sequence of messages over a real socket. Each is encoded in the input as:
// id, flags, number of payload bytes, kinds of descriptors (two bits each: none, memory, eventfd,
// pipe), payload. The server must answer or hang up, never stop answering, and be ready for the
// next front end.
func FuzzMessages(f *testing.F) {
	u64, u32 := vhosttest.U64, vhosttest.U32s
	msg := func(id vhostuser.MessageID, fds byte, payload []byte) []byte {
		return append([]byte{byte(id), 1 | vhosttest.NeedReply, byte(len(payload)), fds}, payload...)
	}
	start := func(ring uint32) (b []byte) {
		b = append(b, msg(vhostuser.SetVringNum, 0, u32(ring, 8))...)
		b = append(b, msg(vhostuser.SetVringAddr, 0, append(u32(ring, 1), u64(0, 0x1000, 0x2000, 0x1000)...))...)
		b = append(b, msg(vhostuser.SetVringKick, 2, u64(uint64(ring)))...)
		b = append(b, msg(vhostuser.SetVringCall, 2, u64(uint64(ring)))...)
		return append(b, msg(vhostuser.SetVringEnable, 0, u32(ring, 1))...)
	}
	hello := append(msg(vhostuser.SetProtocolFeatures, 0, u64(vhostuser.ProtocolFeatures)), msg(vhostuser.SetFeatures, 0, u64(vhostuser.Features))...)
	memory := msg(vhostuser.AddMemReg, 1, u64(0, 0, 1<<16, 0, 0))
	join := func(bs ...[]byte) (out []byte) {
		for _, b := range bs {
			out = append(out, b...)
		}
		return out
	}
	f.Add(join(hello, memory, start(0), msg(vhostuser.GetVringBase, 0, u32(0, 0))))
	f.Add(join(hello, memory, start(1), msg(vhostuser.SetLogBase, 1, u64(4096, 0)), msg(vhostuser.ResetDevice, 0, nil)))
	f.Add(join(hello, msg(vhostuser.SetMemTable, 5, append(u32(2, 0), u64(0, 4096, 0, 0, 8192, 4096, 8192, 4096)...)), msg(vhostuser.SetDeviceStateFD, 3, u32(0, 0)), msg(vhostuser.CheckDeviceState, 0, nil)))
	f.Add(join(hello, memory, memory, msg(vhostuser.RemMemReg, 0, u64(0, 0, 1<<16, 0, 0)), start(2)))

	b := newFuzzBench(f)
	f.Fuzz(func(t *testing.T, in []byte) { b.play(t, in) })
}

type fuzzBench struct {
	sock    string
	ram     *vhosttest.Memory
	dev     *migratable
	ram2    int
	stopped chan error
}

func newFuzzBench(f *testing.F) *fuzzBench {
	b := &fuzzBench{sock: filepath.Join(f.TempDir(), "s"), dev: &migratable{state: []byte("state")}, stopped: make(chan error, 1)}
	var err error
	if b.ram, err = vhosttest.NewMemory(0, 1<<16); err != nil {
		f.Fatal(err)
	}
	if b.ram2, err = b.ram.DupFD(); err != nil {
		f.Fatal(err)
	}
	ln, err := vhostuser.Listen(b.sock)
	if err != nil {
		f.Fatal(err)
	}
	srv := vhostuser.NewServer(vhostuser.NewMemory(), b.dev, vhostuser.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { b.stopped <- srv.Serve(ctx, ln) }()
	f.Cleanup(func() {
		cancel()
		if err := <-b.stopped; err != nil {
			f.Error(err)
		}
		unix.Close(b.ram2)
		b.ram.Close()
	})
	return b
}

func (b *fuzzBench) play(t *testing.T, in []byte) {
	front, err := vhosttest.Dial(b.sock)
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	var keep []*os.File
	defer func() {
		for _, f := range keep {
			f.Close()
		}
	}()
	for n := 0; len(in) >= 4 && n < 64; n++ {
		id, flags, size, kinds := vhostuser.MessageID(in[0]), uint32(in[1])&^3, int(in[2]), in[3]
		in = in[4:]
		size = min(size, len(in))
		var payload []byte
		payload, in = in[:size], in[size:]
		var fds, mine []int // mine: those to close after sending
		for ; kinds&3 != 0; kinds >>= 2 {
			switch kinds & 3 {
			case 1:
				fds = append(fds, b.ram2)
			case 2:
				fd, err := unix.Eventfd(1, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
				if err != nil {
					t.Fatal(err)
				}
				fds, mine = append(fds, fd), append(mine, fd)
			case 3:
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				keep = append(keep, r, w)
				fds = append(fds, fdOf(t, w))
			}
		}
		err := front.Send(id, flags, payload, fds...)
		for _, fd := range mine {
			unix.Close(fd)
		}
		if err != nil {
			break // the server hung up
		}
	}
	// Close our ends of the state pipes, or a transfer would rightly wait for us.
	for _, f := range keep {
		f.Close()
	}
	keep = nil
	if err := front.Sock.CloseWrite(); err != nil {
		return
	}
	_ = front.Sock.SetReadDeadline(time.Now().Add(10 * time.Second))
	answers, err := io.ReadAll(front.Sock)
	if ne, ok := err.(interface{ Timeout() bool }); ok && ne.Timeout() {
		t.Fatal("the server neither answered nor hung up")
	}
	for len(answers) >= 12 {
		n := int(binary.LittleEndian.Uint32(answers[8:]))
		if binary.LittleEndian.Uint32(answers[4:]) != 5 || n > 8 || len(answers) < 12+n {
			t.Fatalf("malformed reply % x", answers[:12])
		}
		answers = answers[12+n:]
	}
}

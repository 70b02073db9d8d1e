package cuda

import (
	"testing"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// given is a host whose sessions are offered one thing by another session, with a descriptor or
// without.
type given struct {
	*drivertest.Host
	blob []byte
	file bool
	open int // redeemed, and not let go of
	t    *testing.T
}

func (g *given) Offer(driver.Shared) (driver.ShareToken, error)    { return driver.ShareToken{1}, nil }
func (g *given) OfferAgain(driver.ShareToken, driver.Shared) error { return nil }
func (g *given) LetGo(driver.ShareToken)                           { g.open-- }
func (g *given) Withdraw(driver.ShareToken)                        {}
func (g *given) Redeem(driver.ShareToken) (b []byte, fd int, _ error) {
	g.open++
	return g.blob, g.descriptor(), nil
}

func (g *given) descriptor() int {
	if !g.file {
		return -1
	}
	fd, err := unix.MemfdCreate("shared", unix.MFD_CLOEXEC)
	if err != nil {
		g.t.Fatal(err)
	}
	return fd
}

// FuzzShared: what another session shares was said by its worker, which may have been taken over.
// Whatever it says, it is opened as what it is or refused, nothing that belongs to this worker
// reaches the driver, what is opened is counted as often as it is closed, and nobody is charged for
// it here.
func FuzzShared(f *testing.F) {
	opaque := make([]byte, opaqueSize)
	f.Add(uint8(0), false, append([]byte{shareMemory}, opaque...))
	for _, v := range []pageOffer{{0, 512, 2 << 20}, {1 << 20, 1 << 20, 2 << 20}, {1 << 20, 1<<20 + 1, 2 << 20}, {^uint64(0), 2, 2 << 20}, {0, 1, 1 << 62}, {2 << 20, 0, 2 << 20}} {
		b := append([]byte{shareMemory}, opaque...)
		for i, n := range []uint64{v.Offset, v.Size, v.All} {
			for k := range 8 {
				b[1+8*i+k] = byte(n >> (8 * k))
			}
		}
		f.Add(uint8(0), true, b)
	}
	f.Add(uint8(1), false, append([]byte{shareEvent}, opaque...))
	f.Add(uint8(2), true, []byte{sharePhysical, 0, 0, 0x20, 0, 0, 0, 0, 0})
	f.Add(uint8(3), true, append([]byte{sharePool}, make([]byte, 16)...))
	f.Add(uint8(4), false, append([]byte{sharePointer, 0, 1}, make([]byte, 6+opaqueSize)...))
	drv := owningDriver()
	f.Fuzz(func(t *testing.T, how uint8, file bool, blob []byte) {
		cudatest.Restart()
		g := &given{drivertest.NewHost(), blob, file, 0, t}
		s := agreeing(t, drv, g.Host)
		s.host, s.devices = g, make([]deviceInfo, 1)
		token := make([]byte, len(driver.ShareToken{}))
		token[0] = 1
		c := &wire.Call{Ctx: 1, Thread: 1, Replier: silent{}}
		if res := s.CtxCreate(&wire.Call{Replier: silent{}}, &wire.CtxCreateArgs{Ctx: 1}); res != cuda.Success {
			t.Fatal(res)
		}
		if res := s.PoolCreate(c, &wire.PoolCreateArgs{Pool: 30}); res != cuda.Success {
			t.Fatal(res)
		}
		for n := range uint32(3) {
			switch how % 5 {
			case 0:
				var r wire.IpcOpenMemHandleReply
				res := s.IpcOpenMemHandle(c, &wire.IpcOpenMemHandleArgs{Token: token, Flags: 1}, &r)
				if _, open := s.opened[r.Ptr]; (res == cuda.Success) != open || len(s.opened) > 1 {
					t.Errorf("%v, at %#x, of %d that are open", res, r.Ptr, len(s.opened))
				}
				if n == 2 && res == cuda.Success {
					if res := s.IpcCloseMemHandle(c, &wire.IpcCloseMemHandleArgs{Ptr: r.Ptr}); res != cuda.Success || len(s.opened) != 0 {
						t.Errorf("closed: %v, and %d are open", res, len(s.opened))
					}
				}
			case 1:
				s.IpcOpenEventHandle(c, &wire.IpcOpenEventHandleArgs{Token: token, Event: 100 + n})
			case 2:
				if res := s.MemImport(c, &wire.MemImportArgs{Token: token, Memhandle: 100 + n}, &wire.MemImportReply{}); res == cuda.Success {
					s.MemRelease(c, &wire.MemReleaseArgs{Memhandle: 100 + n})
				}
			case 3:
				s.PoolImport(c, &wire.PoolImportArgs{Token: token, Pool: 30 + n}, &wire.PoolImportReply{})
				if s.pooling.imported[30] {
					t.Error("a pool of the session's own is another's")
				}
			case 4:
				var r wire.PoolImportPointerReply
				if res := s.PoolImportPointer(c, &wire.PoolImportPointerArgs{Token: token, Pool: 30}, &r); res == cuda.Success {
					s.MemFree(c, &wire.MemFreeArgs{Ptr: r.Ptr})
				}
			}
			if found := cudatest.Finding(); found != "" {
				t.Fatal(found)
			}
			if s.used != 0 || s.budget.Used() != s.pooling.spare {
				t.Fatalf("%d bytes are in use, %d booked", s.used, s.budget.Used())
			}
		}
		left := 0 // that the driver would not free
		for _, tokens := range s.pooling.theirs {
			left += len(tokens)
		}
		if memory := how%5 == 0 || how%5 == 2 || how%5 == 4; memory && g.open != left {
			t.Errorf("memory of another's is open %d times, and %d times more than it was let go of", left, g.open)
		}
	})
}

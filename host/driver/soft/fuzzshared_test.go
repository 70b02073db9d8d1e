package soft

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/drivertest"
)

// FuzzShared: what another session shares was said by its worker, which may have been taken over:
// its file is mapped as far as it goes, or refused, and what is mapped can be written to its end.
// The file is of so many pages, and may be one that can shrink.
func FuzzShared(f *testing.F) {
	p := part{Offset: 4096, Size: 8192}
	for _, kind := range []byte{shareMemory, shareEvent, sharePhysical, sharePool, sharePointer} {
		for how := range uint8(5) {
			f.Add(how, uint16(8), true, append([]byte{kind}, p.encode()...))
		}
	}
	p = part{Size: 2 << 20}
	f.Add(uint8(2), uint16(512), true, append([]byte{sharePhysical}, p.encode()...))
	p = part{Offset: ^uint64(0) - 4095, Size: 4096}
	f.Add(uint8(0), uint16(8), true, append([]byte{shareMemory}, p.encode()...))
	p = part{Offset: 8*4096 - 1, Size: 2}
	f.Add(uint8(0), uint16(8), true, append([]byte{shareMemory}, p.encode()...))
	f.Add(uint8(0), uint16(8), false, append([]byte{shareMemory}, p.encode()...))
	f.Fuzz(func(t *testing.T, how uint8, pages uint16, fixed bool, blob []byte) {
		host := &sharingHost{Host: drivertest.NewHost()}
		defer host.close()
		opened, err := New().Open(host, driver.Options{MemoryLimit: 16 << 20, Cores: 1})
		if err != nil {
			t.Fatal(err)
		}
		s := opened.(*session)
		defer func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}()
		blob = bytes.Clone(blob)
		if len(blob) > partSize {
			copy(blob[17:33], s.gpus[0].uuid[:]) // of a device that is there
		}
		token := shared(t, host, blob, int64(pages)*4096, fixed)
		c := &wire.Call{Ctx: 16, Thread: 1, Replier: silent{}}
		if res := s.CtxCreate(&wire.Call{Replier: silent{}}, &wire.CtxCreateArgs{Ctx: 16}); res != cuda.Success {
			t.Fatal(res)
		}
		for n := range uint32(2) {
			switch how % 5 {
			case 0:
				var r wire.IpcOpenMemHandleReply
				if res := s.IpcOpenMemHandle(c, &wire.IpcOpenMemHandleArgs{Token: token, Flags: 1}, &r); res == cuda.Success {
					filled(t, s, r.Ptr, r.Size)
				}
			case 1:
				if res := s.IpcOpenEventHandle(c, &wire.IpcOpenEventHandleArgs{Token: token, Event: 100 + n}); res == cuda.Success {
					s.EventRecord(c, &wire.EventRecordArgs{Event: 100 + n, Stream: wire.StreamLegacy})
				}
			case 2:
				importPhysical(t, s, c, token, 100+8*n)
			case 3:
				s.PoolImport(c, &wire.PoolImportArgs{Token: token, Pool: 30 + n}, &wire.PoolImportReply{})
			case 4:
				s.PoolCreate(c, &wire.PoolCreateArgs{Pool: 30, Handles: 1})
				var r wire.PoolImportPointerReply
				if res := s.PoolImportPointer(c, &wire.PoolImportPointerArgs{Token: token, Pool: 30}, &r); res == cuda.Success {
					filled(t, s, r.Ptr, r.Size)
				}
			}
		}
		for ptr, o := range s.opened {
			delete(s.opened, ptr)
			s.shut(o)
		}
		for id := range s.mems {
			s.MemRelease(c, &wire.MemReleaseArgs{Memhandle: id})
		}
		if memory := how%5 == 0 || how%5 == 2 || how%5 == 4; memory && host.open != len(s.mems) {
			// What is mapped yet.
			t.Errorf("memory of another's is open %d times, and %d times more than it was let go of", len(s.mems), host.open)
		}
	})
}

// shared offers bytes with a file.
func shared(t *testing.T, host *sharingHost, blob []byte, size int64, fixed bool) []byte {
	t.Helper()
	fd, err := unix.MemfdCreate("shared", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if fixed {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
			t.Fatal(err)
		}
	}
	token, err := host.Offer(driver.Shared{Blob: blob, File: fd})
	if err != nil {
		t.Fatal(err)
	}
	return token[:]
}

// filled writes all of a piece of memory.
func filled(t *testing.T, s *session, ptr, size uint64) {
	t.Helper()
	c := &wire.Call{Ctx: 16, Thread: 1, Replier: silent{}}
	if res := s.Memset(c, &wire.MemsetArgs{Dst: ptr, Element: 1, Width: size, Height: 1, Stream: wire.StreamLegacy}); res != cuda.Success {
		t.Errorf("%d bytes at %#x cannot be written: %v", size, ptr, res)
	}
	s.CtxSynchronize(c)
}

func importPhysical(t *testing.T, s *session, c *wire.Call, token []byte, id uint32) {
	t.Helper()
	var r wire.MemImportReply
	if res := s.MemImport(c, &wire.MemImportArgs{Token: token, Memhandle: id}, &r); res != cuda.Success {
		return
	}
	var v wire.MemAddressReserveReply
	if res := s.MemAddressReserve(c, &wire.MemAddressReserveArgs{Resv: id + 1, Size: r.Size}, &v); res != cuda.Success {
		return // more than there are addresses for
	}
	if res := s.MemMap(c, &wire.MemMapArgs{Resv: id + 1, Memhandle: id, Mapping: id + 2, Ptr: v.Ptr, Size: r.Size}); res != cuda.Success {
		t.Errorf("%d bytes cannot be mapped: %v", r.Size, res)
		return
	}
	if res := s.MemSetAccess(c, &wire.MemSetAccessArgs{Mapping: id + 2, Flags: 3}); res != cuda.Success {
		t.Error(res)
	}
	filled(t, s, v.Ptr, r.Size)
}

// Package linktest has a message of each kind, for tests of both ends of a link.
package linktest

import (
	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/offer"
	"causeway/remote"
	"causeway/remote/mtls"
)

// ToWorker is a message of each kind that a parent sends. No field is zero, and fd is the
// descriptor of those that take one.
func ToWorker(fd int) []link.ToWorker {
	f := link.FileOf(fd)
	failed := link.Status{Errno: unix.EIO, Text: "no GPU"}
	key := mtls.Pinned{Certificate: []byte("certificate"), Key: []byte("key"), Peer: mtls.KeyHash{1}}
	cfg := link.Config{
		Carrier: link.CarrierUnix, GPU: "soft", Devices: []int{1}, Visible: []string{"GPU-1"}, MemoryLimit: 1 << 30, MemorySlot: 2,
		ContextBytes: 3 << 20, HostMemory: 1 << 28, HostSlot: 3, ReachWorker: true, Migratable: true, Base: 0x345600000000, Cores: 4, LogLevel: "WARN", Peer: "guest process 5", Tied: true, Adopt: true, Elsewhere: true, Parked: true, Brings: true, Rehearsal: true, Shared: true, Spare: true, Tenant: true, GPUDirect: true,
		Relay: &link.Relay{Server: "gpu1", Addresses: []string{"gpu1:7745"}, Lease: remote.LeaseID{1}, Identity: key}, TLS: &key, Session: remote.SessionID{1}, RDMA: "mlx5_0/1", Direct: true, Branches: 3, Pairs: 4, Partition: 0x8001,
	}
	return []link.ToWorker{
		link.Configure{Config: cfg, Connection: f},
		link.Warm{Config: cfg},
		link.AddMemory{Memory: []link.BackedMemory{
			{MemoryRegion: link.MemoryRegion{GPA: 1 << 32, Size: 1 << 20, Offset: 4096}, File: fd},
			{MemoryRegion: link.MemoryRegion{GPA: 2 << 32, Size: 2 << 20, Offset: 8192}, File: fd},
		}},
		link.RemoveMemory{GPA: 1 << 32},
		link.AddRegion{Region: 1, VA: 0x7f00_0000_0000, Size: 2 << 20},
		link.AddPages{Region: 1, At: 4096, Last: true, Ranges: []link.Range{{GPA: 1 << 32, Size: 4096}, {GPA: 2 << 32, Size: 8192}}},
		link.EndRegion{Region: 1},
		link.Start{Doorbell: f, Memory: []link.File{f, f}},
		link.Park{Number: 7, Limit: 5, Patience: 3, Standing: true},
		link.Resume{},
		link.Rebuild{Elsewhere: true, Successor: f},
		link.Quit{},
		link.Measure{},
		link.Answer{Request: 8, Errno: unix.EINVAL, File: f, Blob: []byte("blob")},
		link.SharePages{Pages: []link.Page{{Kind: link.PageMeter, File: fd}, {Kind: link.PageBell, File: fd}}},
		link.SetLimit{Bytes: 9 << 30},
		link.Leave{},
		link.Probe{OtherModel: true, Together: true},
		link.Export{Ahead: true, Together: true, Stream: f, Memory: []link.File{f, f}},
		link.Copy{Number: 9, Rehearsal: true, Stream: f},
		link.CutCopy{Over: true},
		link.Room{Number: 3, Granted: true},
		link.Connected{Connection: f, Status: failed},
		link.Throttle{Share: 40},
		link.Reconnected{Connection: f},
		link.Divert{Number: 11, Ahead: true, To: *cfg.Relay},
		link.Rehearse{Number: 12, To: *cfg.Relay},
		link.Settle{Number: 12, Goes: true},
	}
}

// ToParent is ToWorker for what a worker sends.
func ToParent(fd int) []link.ToParent {
	failed := link.Status{Errno: unix.EIO, Text: "no GPU"}
	token := offer.Token{0: 1, offer.TokenSize - 1: 2}
	return []link.ToParent{
		link.Started{Status: failed},
		link.Wake{Slot: 3},
		link.RegionEnded{Region: 1},
		link.Parked{Number: 7, Status: failed},
		link.Rebuilt{Status: failed},
		link.Probed{Status: failed},
		link.Exported{Waiting: true, Status: failed},
		link.Copied{Number: 9, Looked: 1 << 40, Sent: 1 << 30, Total: 1 << 31, Cut: true, Status: failed},
		link.Adopted{Status: failed},
		link.Offer{Request: 8, Token: token, Memory: offer.Memory{Bytes: 1 << 30, Of: 3, Lasting: true}, Blob: []byte("blob"), File: link.FileOf(fd)},
		link.Redeem{Request: 9, Token: token, Await: true, Look: true},
		link.Withdraw{Request: 10, Token: token},
		link.LetGo{Request: 11, Token: token},
		link.Want{Number: 3, Bytes: 1 << 30},
		link.Connect{Session: remote.SessionID{1}, Lease: remote.LeaseID{2}, Again: true, Ready: true},
		link.Diverted{Number: 12, Status: failed},
		link.Rehearses{},
		link.Carried{Over: "RoCE v2 by mlx5_0 port 1, MTU 4096"},
		link.Measured{Use: link.Use{PID: 5, Program: "/bin/sh", Devices: []link.DeviceUse{{UUID: [16]byte{1, 2}, Bytes: 1 << 40}}}},
	}
}

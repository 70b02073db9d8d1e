package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
	"causeway/vhostuser"
	"causeway/virtio"
	"causeway/virtio/fs"
)

// A guest waits for each answer of its device for ever, and nobody but its vhost-user backend can
// answer. So a device has a keeper: a small process that hears what QEMU says, sees in shared
// memory which requests are in flight, and does nothing until the device's process has died. Then
// it answers what was in flight and what comes with an error, until QEMU has gone: programs end
// with CUDA errors, and the guest can let go of the device.

// What a device tells its keeper, a byte in front of each packet.
const (
	keepConnected = 'c' // with the front end's socket
	keepMessage   = 'm' // and the message, with its descriptors
	keepAnswered  = 'a'
	keepGone      = 'g'
)

// Descriptors of a keeper's process.
const (
	KeeperLinkFD   = 3
	KeeperMemoryFD = 4
)

const (
	keeperQueues = 1 + requestQueues
	keeperMemory = (keeperQueues*virtio.InFlightSize + 4095) &^ 4095 // whole pages
	// For a keeper that does not read; QEMU waits meanwhile.
	keeperPatience = time.Second
	keeperPacket   = 1 + 8192
	keeperGrace    = 5 * time.Second
	keeperDoubt    = 5 * time.Second // for a device whose link has ended: it is about to end
)

// Keeper is the device's end. It implements vhostuser.Mirror. Without its process it does nothing.
type Keeper struct {
	link   *net.UnixConn
	queues []*virtio.InFlight
	log    *slog.Logger
	lost   sync.Once
}

var _ vhostuser.Mirror = (*Keeper)(nil)

// StartKeeper starts one by a command that ends when another process has become it, so that it is
// nobody's child.
func StartKeeper(command []string, log *slog.Logger) (*Keeper, error) {
	link, theirs, err := sys.PacketPair("link to the keeper")
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	k := &Keeper{link: link, log: log}
	if err := k.start(command, theirs); err != nil {
		return nil, errors.Join(err, link.Close())
	}
	return k, nil
}

func (k *Keeper) start(command []string, theirs *os.File) error {
	fd, mem, err := sys.NewPage("keeper", keeperMemory, 0)
	if err != nil {
		return err
	}
	memory := os.NewFile(uintptr(fd), "keeper's memory")
	defer memory.Close()
	if k.queues, err = keeperQueuesIn(mem); err != nil {
		return err
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.ExtraFiles = []*os.File{theirs, memory}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("start the keeper: %w: %s", err, out)
	}
	return nil
}

// keeperQueuesIn are the queues in the memory, which stays mapped for the life of the process.
func keeperQueuesIn(mem []byte) (_ []*virtio.InFlight, err error) {
	queues := make([]*virtio.InFlight, keeperQueues)
	if len(mem) != keeperMemory {
		return nil, fmt.Errorf("the keeper's memory has %d bytes, not %d", len(mem), keeperMemory)
	}
	for i := range queues {
		if queues[i], err = virtio.NewInFlight(mem[i*virtio.InFlightSize:][:virtio.InFlightSize:virtio.InFlightSize]); err != nil {
			return nil, err
		}
	}
	return queues, nil
}

func (k *Keeper) inFlight(queue int) *virtio.InFlight { return k.queues[queue] }

// tell sends a packet. A keeper that does not hear is given up: the device works without.
func (k *Keeper) tell(kind byte, raw []byte, fds ...int) {
	err := k.link.SetWriteDeadline(time.Now().Add(keeperPatience))
	if err == nil {
		err = sys.SendPacket(k.link, append([]byte{kind}, raw...), fds)
	}
	if err != nil {
		k.lost.Do(func() {
			k.log.Warn("the keeper has gone: if this process died, its guest would wait for ever", "error", err)
			_ = k.link.Close()
		})
	}
}

// Connected implements vhostuser.Mirror.
func (k *Keeper) Connected(sock *net.UnixConn) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { k.tell(keepConnected, nil, int(fd)) })
}

// Message implements vhostuser.Mirror.
func (k *Keeper) Message(raw []byte, fds []int) { k.tell(keepMessage, raw, fds...) }

// Answered implements vhostuser.Mirror.
func (k *Keeper) Answered() { k.tell(keepAnswered, nil) }

// Gone implements vhostuser.Mirror.
func (k *Keeper) Gone() { k.tell(keepGone, nil) }

// Keep is the keeper's process: it returns when the device and its front end have gone. Whom asked
// reaches while the front end stays, it serves that a little longer: its requests in flight have an
// end then. It takes over KeeperLinkFD and KeeperMemoryFD.
func Keep(asked <-chan os.Signal, log *slog.Logger) error {
	shared, err := sys.MapPage(KeeperMemoryFD, true)
	if err != nil {
		return fmt.Errorf("the keeper's memory: %w", err)
	}
	_ = unix.Close(KeeperMemoryFD)
	queues, err := keeperQueuesIn(shared)
	if err != nil {
		return err
	}
	c, err := sys.UnixConn(KeeperLinkFD, "link of the keeper")
	if err != nil {
		return err
	}
	defer c.Close()
	device := deviceOf(c)
	defer unix.Close(device)
	mem := vhostuser.NewMemory()
	standby := vhostuser.NewStandby(mem, fs.NewEnded(mem, requestQueues, func(q int) *virtio.InFlight { return queues[q] }, log), vhostuser.Options{Logger: log})
	if err := receiveStates(c, standby); err != nil || !ended(device) {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-asked:
			time.AfterFunc(keeperGrace, cancel)
		case <-ctx.Done():
		}
	}()
	if err := standby.TakeOver(ctx); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// deviceOf is a pidfd of the process at the other end of the link; -1: it has ended, or this kernel
// has none.
func deviceOf(link *net.UnixConn) int {
	who, err := sys.Peer(link)
	if err != nil {
		return -1
	}
	fd, err := unix.PidfdOpen(int(who.Pid), 0)
	if err != nil {
		return -1
	}
	return fd
}

// ended waits for a process whose link has ended to have done so too. A device that gave its keeper
// up lives on, and two must not answer one front end: each would hear half of it.
func ended(device int) bool {
	for device >= 0 {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(device), Events: unix.POLLIN}}, int(keeperDoubt.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
	return true
}

// receiveStates has the standby know what the device says, until that has died.
func receiveStates(c *net.UnixConn, standby *vhostuser.Standby) error {
	buf, oob := make([]byte, keeperPacket), make([]byte, sys.RightsRoom(16))
	for {
		b, fds, err := sys.ReceivePacket(c, buf, oob)
		if errors.Is(err, io.EOF) || err == nil && len(b) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("hear the device: %w", err)
		}
		switch kind := b[0]; kind {
		case keepConnected:
			sock, err := connection(fds)
			if err != nil {
				return err
			}
			standby.Connected(sock)
		case keepMessage:
			standby.Message(b[1:], fds)
		case keepAnswered:
			standby.Answered()
		case keepGone:
			standby.Gone()
		}
	}
}

// connection is the front end's socket. It takes over fds.
func connection(fds []int) (*net.UnixConn, error) {
	if len(fds) != 1 {
		return nil, fmt.Errorf("%d descriptors for a connection", len(fds))
	}
	return sys.UnixConn(fds[0], "front end")
}

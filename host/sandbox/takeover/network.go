package takeover

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

func (t *Target) sockets() []Attempt {
	dial := func(network, addr string) func() error {
		return func() error {
			c, err := net.DialTimeout(network, addr, time.Second)
			if err != nil {
				return err
			}
			if network == "udp" { // dialling sends nothing
				_, err = c.Write([]byte{0})
			}
			_ = c.Close()
			return err
		}
	}
	open := func(family, kind, protocol int) func() error {
		return func() error {
			fd, err := unix.Socket(family, kind, protocol)
			return closed(fd, err)
		}
	}
	return []Attempt{
		{Name: "connect: another VM's vhost-user socket", Do: dial("unix", t.VHost)},
		{Name: "connect: another VM's device control", Do: dial("unix", t.Control)},
		{Name: "connect: causewayd", Do: dial("unix", t.Daemon)},
		{Name: "connect: scheduler", Do: dial("unix", t.Scheduler)},
		{Name: "connect: abstract unix socket", Do: dial("unix", "@"+t.Abstract)},
		{Name: "connect: TCP", Do: dial("tcp", t.TCP)},
		{Name: "send: UDP", Do: dial("udp", t.UDP)},
		{Name: "listen: TCP", Do: func() error {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			return l.Close()
		}},
		{Name: "socket: netlink", Do: open(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)},
		{Name: "socket: vsock", Do: open(unix.AF_VSOCK, unix.SOCK_STREAM, 0), Through: []unix.Errno{unix.EAFNOSUPPORT}},
		{Name: "socket: raw IP", Do: open(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
		{Name: "socket: packets", Do: open(unix.AF_PACKET, unix.SOCK_RAW, 0), Through: []unix.Errno{unix.EAFNOSUPPORT}},
		{Name: "socket: kernel crypto", Do: open(unix.AF_ALG, unix.SOCK_SEQPACKET, 0), Through: []unix.Errno{unix.EAFNOSUPPORT}},
	}
}

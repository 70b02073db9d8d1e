package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
)

// trusted are the networks in which sessions go without transport security: this host's own, or
// those of which its operator has said that nobody in them is to be kept out.
type trusted []netip.Prefix

// parseTrusted reads --trusted-network. None given: the loopback network.
func parseTrusted(list []string) (trusted, error) {
	if len(list) == 0 {
		return trusted{netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8), netip.PrefixFrom(netip.IPv6Loopback(), 128)}, nil
	}
	var t trusted
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil:
			return nil, fmt.Errorf("--trusted-network %q is no network (%w): write it as 192.0.2.0/24", s, err)
		case p.Bits() == 0:
			return nil, fmt.Errorf("--trusted-network %s is every address: name your network", s)
		case p != p.Masked():
			return nil, fmt.Errorf("--trusted-network %s is an address of a network: write %v, or the address alone as %v", s, p.Masked(), netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
		case p.Addr().Is4In6():
			return nil, fmt.Errorf("--trusted-network %s: write it as an IPv4 network", s)
		}
		t = append(t, p)
	}
	return t, nil
}

// has reports whether an address is of one of them.
func (t trusted) has(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(t, func(p netip.Prefix) bool { return p.Contains(a) })
}

// address resolves what is to be listened on, which has to be an address of theirs.
func (t trusted) address(listen string) (*net.TCPAddr, error) {
	addr, err := resolve(listen)
	if err != nil {
		return nil, err
	}
	if at := addr.AddrPort().Addr(); !at.IsValid() || at.Unmap().IsUnspecified() || !t.has(at) {
		return nil, fmt.Errorf("--listen %s can be reached from other machines, and there is no transport security: use 127.0.0.1, or `causeway serve` for other machines, or an address of a --trusted-network", listen)
	}
	return addr, nil
}

// resolve is an address to listen on.
func resolve(listen string) (*net.TCPAddr, error) {
	addr, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("--listen %q is no address (%w): write it as 127.0.0.1:7070", listen, err)
	}
	return addr, nil
}

// accept is the listener's next connection from one of them. Others are closed unread: the address
// that is listened on may be reached from elsewhere.
func (t trusted) accept(ln *net.TCPListener, log *slog.Logger) (fileConn, error) {
	for {
		c, err := ln.AcceptTCP()
		if err != nil {
			return nil, err
		}
		from, _ := c.RemoteAddr().(*net.TCPAddr)
		if t.has(from.AddrPort().Addr()) {
			return c, nil
		}
		log.Warn("a connection is not taken", "from", from.String(), "error", errUntrusted)
		_ = c.Close()
	}
}

// errUntrusted is why a connection is not taken.
var errUntrusted = errors.New("it comes from no --trusted-network")

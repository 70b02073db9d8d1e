//go:build !cgo

package main

import (
	"errors"
	"net"
)

func overRDMA(net.Conn, string, bool) (net.Conn, error) {
	return nil, errors.New("this build has no RDMA: it needs cgo")
}

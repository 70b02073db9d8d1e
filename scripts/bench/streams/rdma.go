//go:build cgo

package main

import (
	"context"
	"net"

	"causeway/remote/verbs"
	"causeway/remote/verbs/ibv"
)

// overRDMA goes on by a device of this machine, which stays open as long as the process lives.
func overRDMA(c net.Conn, device string, client bool) (net.Conn, error) {
	ds, err := ibv.Open(device, 0)
	if err != nil {
		return nil, err
	}
	return verbs.Upgrade(context.Background(), c, ds.Adapters(), "", client)
}

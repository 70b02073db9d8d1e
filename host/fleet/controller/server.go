package controller

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/remote"
	"causeway/remote/mtls"
)

// askTime bounds what one question to a GPU host takes.
const askTime = 5 * time.Second

// server is the causewayd of a GPU host.
type server struct{ c *api.Client }

// dial makes a client of a GPU host; nothing is connected yet.
func dial(address string, files mtls.Files) (*server, error) {
	c, err := api.NewServerClient(address, func(host string) (*tls.Config, error) { return files.Client(api.RemoteProtocol, host) })
	if err != nil {
		return nil, err
	}
	return &server{c}, nil
}

// State implements lease.Server, as the rest does.
func (s *server) State(ctx context.Context, epoch uint64) (api.FleetState, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	body, err := s.c.Fleet(ctx, epoch)
	if err != nil {
		return api.FleetState{}, err
	}
	defer body.Close()
	st, err := lease.DecodeFleet(body)
	if err == nil && st.Protocol != remote.ProtocolVersion {
		err = fmt.Errorf("it has Causeway %s, whose sessions speak version %d, this controller is of version %d: install the same version on both", st.Version, st.Protocol, remote.ProtocolVersion)
	}
	return st, err
}

// Reserve may end another lease first.
func (s *server) Reserve(ctx context.Context, epoch uint64, r *api.Reservation) error {
	ctx, cancel := context.WithTimeout(ctx, 2*askTime)
	defer cancel()
	return s.c.Reserve(ctx, epoch, r)
}

// Withdraw ends one.
func (s *server) Withdraw(ctx context.Context, epoch uint64, r *api.Reservation) error {
	ctx, cancel := context.WithTimeout(ctx, 2*askTime)
	defer cancel()
	return s.c.Withdraw(ctx, epoch, r)
}

func (s *server) close() { s.c.Close() }

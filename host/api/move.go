package api

import (
	"context"
	"net/http"

	"causeway/remote/mtls"
)

// Relocation is the wish to have a vGPU on another GPU of its host, or on another GPU server.
type Relocation struct {
	GPU string `json:"gpu"` // a number, a UUID, or soft/1
	// Remote is the GPU server to which programs are to go whose GPU is another server's;
	// causewayd's to see to.
	Remote string `json:"remote,omitempty"`
	// OtherModel permits another model than the programs began with, for which their code can be
	// compiled.
	OtherModel bool `json:"other_model,omitempty"`
	// Throttle has programs held back, more and more, as long as they change memory as fast as it
	// is sent to another GPU server.
	Throttle bool `json:"throttle,omitempty"`
}

// Relocated says that a vGPU has moved.
type Relocated struct {
	GPU      string `json:"gpu"` // model
	UUID     string `json:"uuid"`
	Sessions int    `json:"sessions"` // that moved while their programs ran
	// Lost are programs that got an error in place of going along.
	Lost  int    `json:"lost,omitempty"`
	Nanos uint64 `json:"ns"` // that all of it took
	// To another GPU server: rounds in which memory went ahead, its bytes, for how many hundredths
	// of the time programs were held back in the end, and how long they stood at most behind them.
	Rounds int    `json:"rounds,omitempty"`
	Ahead  uint64 `json:"ahead,omitempty"`
	Held   int    `json:"held_back,omitempty"`
	Stood  uint64 `json:"stood_ns,omitempty"`
}

// Diversion tells a device process of another GPU server for its programs.
type Diversion struct {
	To        Upstream    `json:"to"`
	Addresses []string    `json:"addresses"` // HOST:PORT, tried in their order
	Identity  mtls.Pinned `json:"identity"`
	Throttle  bool        `json:"throttle,omitempty"` // as Relocation has it
}

// Move has a vGPU move to another GPU of its host, or to another GPU server, with its programs.
func (c *Client) Move(ctx context.Context, vm, name string, r Relocation) (did Relocated, err error) {
	return did, c.Do(ctx, http.MethodPost, path(vm, name)+"/move", r, &did)
}

package daemon

import (
	"sync"

	"causeway/host/api"
)

// serverClients are clients of GPU servers that several goroutines share, one for each server. A
// server takes fewer connections of one host than it gives leases: what each lease asks goes by the
// same.
type serverClients struct {
	mu     sync.Mutex
	shared map[string]*sharedClient
}

// sharedClient is there as long as somebody has it.
type sharedClient struct {
	*api.Client
	users int
}

// take is the client of a server, which whoever has it leaves; connect makes one.
func (s *serverClients) take(name string, connect func(name string) (*api.Client, error)) (*api.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.shared[name]
	if c == nil {
		made, err := connect(name)
		if err != nil {
			return nil, err
		}
		if s.shared == nil {
			s.shared = map[string]*sharedClient{}
		}
		c = &sharedClient{Client: made}
		s.shared[name] = c
	}
	c.users++
	return c.Client, nil
}

// leave gives a server's client back. The last one's closes it.
func (s *serverClients) leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.shared[name]
	if c.users--; c.users == 0 {
		delete(s.shared, name)
		c.Close()
	}
}

// serverClient is the client of one GPU server at a time. It is one goroutine's.
type serverClient struct {
	clients *serverClients
	connect func(name string) (*api.Client, error)
	name    string
	c       *api.Client // nil: none yet
}

// of is the client of a server: the one that there is, unless that is of another, which is left
// then. With an error it stays.
func (s *serverClient) of(name string) (*api.Client, error) {
	if s.c != nil && s.name == name {
		return s.c, nil
	}
	c, err := s.clients.take(name, s.connect)
	if err != nil {
		return nil, err
	}
	s.close()
	s.c, s.name = c, name
	return c, nil
}

func (s *serverClient) close() {
	if s.c != nil {
		s.clients.leave(s.name)
	}
}

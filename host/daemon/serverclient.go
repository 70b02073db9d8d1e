package daemon

import "causeway/host/api"

// serverClient is the client of one GPU server at a time. It is one goroutine's.
type serverClient struct {
	connect func(name string) (*api.Client, error)
	name    string
	c       *api.Client // nil: none yet
}

// of is the client of a server: the one that there is, unless that is of another, which is closed
// then. With an error it stays.
func (s *serverClient) of(name string) (*api.Client, error) {
	if s.c != nil && s.name == name {
		return s.c, nil
	}
	c, err := s.connect(name)
	if err != nil {
		return nil, err
	}
	s.close()
	s.c, s.name = c, name
	return c, nil
}

func (s *serverClient) close() {
	if s.c != nil {
		s.c.Close()
	}
}

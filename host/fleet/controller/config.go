package controller

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"causeway/host/api"
	"causeway/host/fleet/pool"
)

// Config is which GPU hosts are in the fleet.
type Config struct {
	// Nodes are the labels of nodes that reach the hosts and run causeway-dra, where a host says no
	// others.
	Nodes map[string]string `json:"nodes"`
	Hosts []HostConfig      `json:"hosts"`
}

// HostConfig is one GPU host.
type HostConfig struct {
	Name string `json:"name"`
	// Address is by what nodes' causewayds have it in remote.servers, as NAME or HOST:PORT; empty:
	// Name.
	Address string            `json:"address,omitempty"`
	Nodes   map[string]string `json:"nodes,omitempty"`
	// Leaving: it gets no new claims, and what claims have of it ends with them, also under a
	// controller that begins later.
	Leaving bool `json:"leaving,omitempty"`
	// Local: it is the Node of its name, and its GPUs are for pods there, too.
	Local bool `json:"local,omitempty"`
	// Moves: a VM of KubeVirt moves with a claim that it names directly. The controller has to know
	// of claims' pods where they run (causeway-fleet-moves.yaml).
	Moves bool `json:"moves,omitempty"`
}

// Bounds of a configuration.
const (
	mostConfig = 4 << 20
	mostHosts  = 10000
)

// ErrConfig says that a configuration cannot be used.
var ErrConfig = errors.New("the fleet's configuration")

// ReadConfig reads and checks a file.
func ReadConfig(name string) (*Config, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostConfig+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	c, err := ParseConfig(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// ParseConfig reads and checks a configuration.
func ParseConfig(b []byte) (*Config, error) {
	c := &Config{}
	if len(b) > mostConfig {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrConfig, mostConfig)
	}
	if err := yaml.UnmarshalStrict(b, c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return c, nil
}

func (c *Config) check() error {
	if len(c.Hosts) > mostHosts {
		return fmt.Errorf("%d hosts, more than %d", len(c.Hosts), mostHosts)
	}
	var names, addresses []string
	for i := range c.Hosts {
		h := &c.Hosts[i]
		if h.Address == "" {
			h.Address = h.Name
		}
		if len(h.Nodes) == 0 {
			h.Nodes = c.Nodes
		}
		if why := validation.IsDNS1123Subdomain(h.Name); len(why) > 0 {
			return fmt.Errorf("hosts: name %q: %s", h.Name, why[0])
		}
		if err := api.CheckServer(h.Address); err != nil || h.Address == api.RemoteAny {
			return fmt.Errorf("hosts: %s: address %q: write NAME or HOST:PORT, as remote.servers of nodes has it", h.Name, h.Address)
		}
		if len(h.Nodes) == 0 {
			return fmt.Errorf("hosts: %s: nodes: say by which labels the nodes are known that reach it and run causeway-dra, as in {causeway.dev/fabric: f1}", h.Name)
		}
		for key, value := range h.Nodes {
			if why := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(why) > 0 {
				return fmt.Errorf("hosts: %s: nodes: %q: %s", h.Name, key+": "+value, why[0])
			}
		}
		names, addresses = append(names, h.Name), append(addresses, api.ServerAddress(h.Address))
	}
	for what, list := range map[string][]string{"name": names, "address": addresses} {
		slices.Sort(list)
		for i := range list {
			if i > 0 && list[i] == list[i-1] {
				return fmt.Errorf("hosts: two of the %s %s", what, list[i])
			}
		}
	}
	return nil
}

func (h *HostConfig) host() pool.Host {
	return pool.Host{Name: h.Name, Nodes: h.Nodes, Local: h.Local, Moves: h.Moves}
}

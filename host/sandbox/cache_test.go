package sandbox

import (
	"slices"
	"testing"
)

// TestWithCache: what the operator set holds.
func TestWithCache(t *testing.T) {
	const path, size = "CUDA_CACHE_PATH=/dev/shm/compute-cache", "CUDA_CACHE_MAXSIZE=33554432"
	for name, c := range map[string]struct{ env, want []string }{
		"empty":  {nil, []string{path, size}},
		"others": {[]string{"CUDA_CACHE_PATHS=/x", "HOME=/"}, []string{"CUDA_CACHE_PATHS=/x", "HOME=/", path, size}},
		// The driver looks at no path then.
		"no cache":     {[]string{"CUDA_CACHE_DISABLE=1"}, []string{"CUDA_CACHE_DISABLE=1", path, size}},
		"a path":       {[]string{"CUDA_CACHE_PATH=/x"}, []string{"CUDA_CACHE_PATH=/x"}},
		"an empty one": {[]string{"CUDA_CACHE_PATH="}, []string{"CUDA_CACHE_PATH="}},
		"a size":       {[]string{"CUDA_CACHE_MAXSIZE=1048576"}, []string{"CUDA_CACHE_MAXSIZE=1048576", path}},
	} {
		before := slices.Clone(c.env)
		got := withCache(append(make([]string, 0, 16), c.env...))
		if !slices.Equal(got, c.want) || !slices.Equal(c.env, before) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestCached: only workers that have a /dev/shm of their own as one user keep compiled kernels
// there.
func TestCached(t *testing.T) {
	for name, c := range map[string]struct {
		space *Space
		want  bool
	}{
		"real":              {&Space{policy: Policy{Mode: On, Real: true, User: UIDBase + 1}, shm: true}, true},
		"software":          {&Space{policy: Policy{Mode: On}, shm: true}, false},
		"strict":            {&Space{policy: Policy{Mode: Strict, Real: true}, shm: true}, false},
		"audit":             {&Space{policy: Policy{Mode: Audit, Real: true}}, false},
		"the host's":        {&Space{policy: Policy{Mode: On, Real: true, User: UIDBase + 1}}, false},
		"started by a user": {&Space{policy: Policy{Mode: On, Real: true}}, false},
	} {
		if got := c.space.cached(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

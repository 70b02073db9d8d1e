package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// TestExample: the documented file holds every key, with its default.
func TestExample(t *testing.T) {
	c, err := Parse(Example())
	if err != nil {
		t.Fatal(err)
	}
	if want := Default(); !reflect.DeepEqual(c, want) {
		t.Errorf("the example gives\n%+v\nthe defaults are\n%+v", c, want)
	}
	text := string(Example())
	for _, key := range keys(reflect.TypeFor[Config](), "") {
		name := regexp.QuoteMeta(last(key))
		if !regexp.MustCompile(`(?m)^(` + name + ` = |\[(\w+\.)?` + name + `\])`).MatchString(text) {
			t.Errorf("%s is not in the example", key)
		}
	}
	for line := range strings.Lines(text) {
		if len(line) > 150 {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
	}
}

// TestText: what --check prints is a configuration that means the same.
func TestText(t *testing.T) {
	c := Default()
	c.Devices.Memory, c.Devices.Environment["A"], c.Roles.Viewer, c.Metrics.Listen = 16<<30, "b", []string{"@0", "12"}, "[::1]:9435"
	b, err := c.Text()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(b)
	if err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("%v\n%s\n%+v", err, b, again)
	}
}

func TestWrong(t *testing.T) {
	for text, words := range map[string][]string{
		"run_dri = '/x'":                                            {"line 1", "run_dri", "did you mean run_dir?"},
		"\n[device]\nmemory = '1GiB'":                               {"line 2", "did you mean devices?"},
		"[placement]\nmemory = '1GiB'":                              {"line 2", "placement.memory", "did you mean devices.memory?"},
		"[health]\nignore_xid = [1]":                                {"did you mean health.ignore_xids?"},
		"run_dir = 7":                                               {"line 1", "run_dir"},
		"run_dir = 'x'":                                             {`run_dir = "x"`, "absolute path"},
		"run_dir = '/" + strings.Repeat("x", 70) + "'":              {"run_dir", "at most 64 bytes"},
		"run_dir = ":                                                {"line 1"},
		"[roles]\nadmin = ['no-such-user']":                         {"roles.admin", "no-such-user", "no user"},
		"[roles]\nviewer = ['@no-such-group']":                      {"roles.viewer", "groupadd no-such-group"},
		"[roles]\nadmin = 'root'":                                   {"line 2", "roles.admin"},
		"[devices]\nsocket_owner = 'no-such-user:0'":                {"devices.socket_owner", "no user"},
		"[devices]\nsocket_owner = '0:no-such-group'":               {"devices.socket_owner", "no group"},
		"[devices]\nsocket_owner = ':0'":                            {"devices.socket_owner", "USER:GROUP"},
		"[devices]\nmemory = '16 apples'":                           {"line 2", "devices.memory", "16 apples", "512MiB"},
		"[devices]\nmemory = 16":                                    {"devices.memory", "16GiB"},
		"[devices]\nmemory = '0'":                                   {"line 2", "devices.memory", "none"},
		"[devices]\nshare = 0":                                      {"devices.share", "1 to 10000"},
		"[devices]\nshare = -1":                                     {"line 2", "devices.share"},
		"[devices]\nweight = 100":                                   {"line 2", "unknown key devices.weight", "did you mean devices.share?"},
		"[devices]\ncap = 101":                                      {"devices.cap", "1 to 100"},
		"[devices]\ncap = 0":                                        {"devices.cap", "none"},
		"[devices]\nsessions = 0":                                   {"devices.sessions", "1 to 1000"},
		"[profiles]\nhalf = { share = 50 }":                         {"profiles", "half", "without memory"},
		"[profiles]\nhalf = { memory = '1/2' }":                     {"profiles", "half", "a share of 0"},
		"[profiles]\nhalf = { memory = '3' }":                       {"line 2", "profiles.half", "3GiB"},
		"[profiles]\nhalf = { memory = '1/2', share = 5, cap = 0 }": {"profiles.half.cap", "none"},
		"[profiles]\n'a b' = { memory = '1/2', share = 1 }":         {"profiles", "a b"},
		"[devices]\nwarm_workers = 65":                              {"devices.warm_workers = 65"},
		"[devices]\nstart_timeout = '10ms'":                         {"devices.start_timeout = 10ms", "1s to 10m"},
		"[devices]\nstart_timeout = 'soon'":                         {"line 2", "soon", "500ms"},
		"[devices]\nlog = 'syslog'":                                 {`devices.log = "syslog"`, "journal"},
		"[devices]\nlog_size = '1KiB'":                              {"devices.log_size", "1 MiB"},
		"[devices.environment]\n'A=B' = 'x'":                        {"devices.environment", "A=B"},
		"[placement]\novercommit = 0.5":                             {"placement.overcommit = 0.5"},
		"[placement]\novercommit = nan":                             {"placement.overcommit = NaN"},
		"[placement]\nsoftware_gpu = 'maybe'":                       {`placement.software_gpu = "maybe"`, "named"},
		"[health]\ninterval = '1ms'":                                {"health.interval = 1ms"},
		"[metrics]\nlisten = '127.0.0.1'":                           {"metrics.listen", "127.0.0.1:9435"},
		"[metrics]\nlisten = ':0'":                                  {"metrics.listen"},
		"[metrics]\nlisten = ':http'":                               {"metrics.listen"},
		"[metrics]\nlisten = ':94350'":                              {"metrics.listen", "127.0.0.1:9435"},
		"[remote]\nlisten = ':77450'":                               {"remote.listen", ":7745"},
		"[remote]\nlisten = 7745":                                   {"line 2", "remote.listen", "a TOML integer", "quotes"},
		"[remote]\nallow = 'hosta'":                                 {"line 2", "remote.allow", "a list"},
		"[remote]\nrdma = true":                                     {"line 2", "remote.rdma", "quotes"},
		"[remote]\nrdma = 'yes'":                                    {"remote.rdma", "auto"},
		"[remote]\ngpu_direct = 'on'":                               {"line 2", "remote.gpu_direct", "true or false"},
		"[remote]\ncopy_connections = '4'":                          {"line 2", "remote.copy_connections", "a number"},
		"[remote]\nservers = ['gpu1', 'gpu1:7745']":                 {"remote.servers", "gpu1:7745", "twice"},
		"[remote]\ndomain = '_causeway._tcp.example.net'":           {"remote.domain", "example.net", "without _causeway._tcp"},
		// All at once.
		"[devices]\nwarm_workers = -1\nlog = 'x'": {"devices.warm_workers = -1", "devices.log"},
	} {
		_, err := Parse([]byte(text))
		if err == nil {
			t.Errorf("%q is no error", text)
			continue
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: %q does not say %q", text, err, w)
			}
		}
	}
}

func TestLoad(t *testing.T) {
	name := filepath.Join(t.TempDir(), "c.toml")
	if _, err := Load(name); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.WriteFile(name, []byte("[devices]\ncap = 500\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(name); !errors.Is(err, ErrValue) || !strings.HasPrefix(err.Error(), name+": ") {
		t.Error(err)
	}
	if err := os.WriteFile(name, []byte("[devices]\ncap = 50\nmemory = '2GiB'\nsocket_owner = '0:0'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(name)
	if err != nil || c.Devices.Cap != 50 || c.Devices.Memory != 2<<30 || c.Devices.Share != 100 || c.Devices.Owner() != "0:0" {
		t.Errorf("%+v, %v", c, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Example())
	f.Add([]byte("[devices]\nshare = 3\ncap = 25\n"))
	f.Add([]byte("run_dir = 1979-05-27T07:32:00Z"))
	f.Add([]byte("[roles]\nadmin = [[]]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse(b)
		if err != nil {
			return
		}
		if err := c.Check(); err != nil {
			t.Errorf("parsed, and wrong: %v", err)
		}
		if _, err := c.Text(); err != nil {
			t.Errorf("cannot be written: %v", err)
		}
	})
}

// TestHostPart: a part of the host's memory, a size, or none; and what is none of them.
func TestHostPart(t *testing.T) {
	for text, want := range map[string]uint64{"3/4": 12 << 30, "25%": 4 << 30, "8GiB": 8 << 30, "none": 0} {
		var p HostPart
		if err := p.UnmarshalText([]byte(text)); err != nil || p.Of(16<<30) != want {
			t.Errorf("%s of 16 GiB: %d, %v, want %d", text, p.Of(16<<30), err, want)
		}
		var again HostPart
		if err := again.UnmarshalText([]byte(p.String())); err != nil || again != p {
			t.Errorf("%s is written %s, which is %v, %v", text, p, again, err)
		}
	}
	for _, text := range []string{"", "0", "4", "5/4", "all"} {
		if new(HostPart).UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q is taken", text)
		}
	}
	c := Default()
	l := c.Isolation.Limits()
	if l.Memory == 0 || l.High >= l.Memory || l.High < l.Memory/2 || l.Processes == 0 {
		t.Errorf("nothing bounds a vGPU where nobody says anything: %+v", l)
	}
}

// TestServesOnly: a host that gives GPUs to others is no more than that as long as nothing else of
// its configuration has to do with them.
func TestServesOnly(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "[remote]\nlisten = ':7745'": true, "[remote]\nservers = ['gpu2']": false,
		"[remote]\nlisten = ':7745'\nallow = ['hosta']\nfleet = ['fleet']": true,
		"[remote]\nlisten = ':7745'\nservers = ['gpu2']":                   false,
		"[remote]\nlisten = ':7745'\ndomain = 'example.net'":               false,
		"[remote]\nlisten = ':7745'\n[migration]\nlisten = ':7744'":        false,
		"[remote]\nlisten = ':7745'\n[migration]\npeers = ['hostb']":       false,
	} {
		c, err := Parse([]byte(text))
		if err != nil || c.ServesOnly() != want {
			t.Errorf("%q: %v, %v", text, c.ServesOnly(), err)
		}
	}
}

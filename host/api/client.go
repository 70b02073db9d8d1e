package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unicode"
)

// Client speaks to causewayd, or to a device process's control socket.
type Client struct {
	socket string
	base   string // of addresses
	// Another host's causewayd: what it means that nobody listens there; nil: it is this host's.
	nobody error
	device bool // the socket is a device process's
	watch  watch
	http   *http.Client
}

// NewClient returns a client for a socket; nothing is connected yet. Who uses it says by ctx how
// long a question may take.
func NewClient(socket string) *Client {
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	return &Client{socket: socket, base: "http://causeway", http: &http.Client{Transport: t}}
}

// NewDaemonClient returns a client for the causewayd of a run directory, for who asks on people's
// behalf: a question takes as long as it has to, and fails with ErrSilent if causewayd does nothing
// any more.
func NewDaemonClient(run string) *Client {
	c := NewClient(Socket(run))
	c.watch = watch{silenceLook, silenceLimit}
	return c
}

// NewDeviceClient is NewDaemonClient for the control socket of a vGPU's device process.
func NewDeviceClient(socket string) *Client {
	c := NewClient(socket)
	c.device, c.watch = true, watch{silenceLook, silenceLimit}
	return c
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// ErrNotRunning says that nobody serves the socket.
var ErrNotRunning = errors.New("causewayd does not run: start it with `systemctl start causewayd` or `causeway daemon`")

// ErrNoDevice says that the device process has ended whose socket it was.
var ErrNoDevice = errors.New("its device process here has ended, and its programs get errors: `causeway ps` says why; `causeway detach` and `attach` give a VM another")

// Do sends in as JSON, if it is not nil, and reads the answer into out, if that is not nil.
func (c *Client) Do(ctx context.Context, method, path string, in, out any) error {
	body, err := c.Open(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, body)
		return err
	}
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return fmt.Errorf("answer to %s %s: %w", method, path, err)
	}
	return nil
}

// Open is Do for an answer that the caller reads, and closes.
func (c *Client) Open(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	ctx, over := c.begin(ctx)
	resp, err := c.ask(ctx, method, path, body)
	if err != nil {
		over()
		return nil, err
	}
	resp.Body = &answer{resp.Body, ctx, over}
	if resp.StatusCode < 300 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	return nil, c.refusal(resp, method, path)
}

// get makes a plain request.
func (c *Client) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	return c.http.Do(req)
}

// ask makes a request with some headers, by name and value. The answer may be a refusal.
func (c *Client) ask(ctx context.Context, method, path string, body io.Reader, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.http.Do(req)
	if err == nil {
		return resp, nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, ErrSilent) {
		err = cause
	} else {
		err = c.unreached(err)
	}
	if errors.Is(err, ErrSilent) && method != http.MethodGet {
		err = fmt.Errorf("%w; what was asked may be done yet", err)
	}
	return nil, err
}

// refusal is the error that an answer tells of.
func (c *Client) refusal(resp *http.Response, method, path string) error {
	e := &Error{Status: resp.StatusCode}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if json.Unmarshal(b, e) != nil || e.Text == "" {
		e.Text = fmt.Sprintf("%s %s: %s", method, path, resp.Status)
	}
	if c.nobody != nil {
		e.Text, e.Remedy = printable(e.Text), printable(e.Remedy)
	}
	return e
}

// printable is another host's text as a terminal may show it.
func printable(s string) string {
	const most = 1000
	return Printable(s[:min(len(s), most)])
}

// Printable is somebody else's text with a question mark for each character that a terminal should
// not get.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// unreached says why nobody answered.
func (c *Client) unreached(err error) error {
	if c.nobody != nil {
		return c.unreachedFar(err)
	}
	nobody := errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
	if c.device && (nobody || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		return fmt.Errorf("%w (%s)", ErrNoDevice, c.socket)
	}
	switch {
	case nobody:
		return fmt.Errorf("%w (%s)", ErrNotRunning, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return &Error{Status: http.StatusForbidden, Text: "this user may not connect to " + c.socket, Remedy: "run it as root, or have root make the user an operator in " + ConfigFile}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("who serves %s ended before answering, so what was asked may be done or not: `causeway ps` shows it: %w", c.socket, err)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return c.late(err)
	case c.watched() && full(err):
		return c.silent(0)
	}
	return err
}

func path(vm, name string) string {
	return "/v1/vgpus/" + url.PathEscape(vm) + "/" + url.PathEscape(name)
}

// GPUs lists the host's GPUs.
func (c *Client) GPUs(ctx context.Context) (list []GPU, err error) {
	return list, c.Do(ctx, http.MethodGet, "/v1/gpus", nil, &list)
}

// VGPUs lists all vGPUs.
func (c *Client) VGPUs(ctx context.Context) (list []VGPU, err error) {
	return list, c.Do(ctx, http.MethodGet, "/v1/vgpus", nil, &list)
}

// VGPU is one of them.
func (c *Client) VGPU(ctx context.Context, vm, name string) (v VGPU, err error) {
	return v, c.Do(ctx, http.MethodGet, path(vm, name), nil, &v)
}

// Ensure has a vGPU ready: its socket takes connections when this returns. What a wish leaves out
// stays as it is.
func (c *Client) Ensure(ctx context.Context, w Wish) (v VGPU, err error) {
	return v, c.Do(ctx, http.MethodPut, path(w.VM, w.Name), w, &v)
}

// SetLimits changes limits while programs run, and returns those that hold then.
func (c *Client) SetLimits(ctx context.Context, vm, name string, change Change) (l Limits, err error) {
	return l, c.Do(ctx, http.MethodPut, path(vm, name)+"/limits", change, &l)
}

// Profiles lists the profiles of limits, and what they are on the host's GPUs.
func (c *Client) Profiles(ctx context.Context) (list []Profile, err error) {
	return list, c.Do(ctx, http.MethodGet, "/v1/profiles", nil, &list)
}

// Release ends a vGPU. unused: only if no VM is connected.
func (c *Client) Release(ctx context.Context, vm, name string, unused bool) error {
	p := path(vm, name)
	if unused {
		p += "?if=unused"
	}
	return c.Do(ctx, http.MethodDelete, p, nil, nil)
}

// Version says which causewayd answers.
func (c *Client) Version(ctx context.Context) (v Version, err error) {
	return v, c.Do(ctx, http.MethodGet, "/v1/version", nil, &v)
}

// Drain keeps new vGPUs away from a GPU; Resume lets them come again. Those that are there stay.
func (c *Client) Drain(ctx context.Context, gpu string) error {
	return c.Do(ctx, http.MethodPost, "/v1/gpus/"+url.PathEscape(gpu)+"/drain", nil, nil)
}

// Resume undoes Drain.
func (c *Client) Resume(ctx context.Context, gpu string) error {
	return c.Do(ctx, http.MethodPost, "/v1/gpus/"+url.PathEscape(gpu)+"/resume", nil, nil)
}

// Log opens a vGPU's log, which the caller closes. It begins lines before the end (negative: at the
// beginning), and goes on until ctx ends if follow is set.
func (c *Client) Log(ctx context.Context, vm, name string, lines int, follow bool) (io.ReadCloser, error) {
	q := url.Values{}
	if lines >= 0 {
		q.Set("lines", strconv.Itoa(lines))
	}
	if follow {
		q.Set("follow", "1")
	}
	return c.Open(ctx, http.MethodGet, path(vm, name)+"/log?"+q.Encode(), nil)
}

// Status is a device process's account; the client is one of its control socket.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	return s, c.Do(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// Stays waits at a device process for a migration, with a higher number than after, that will fail
// because of what cannot move.
func (c *Client) Stays(ctx context.Context, after uint64) (s Stays, err error) {
	return s, c.Do(ctx, http.MethodGet, "/v1/stays?after="+strconv.FormatUint(after, 10), nil, &s)
}

// Socket is causewayd's below a run directory.
func Socket(run string) string { return filepath.Join(run, DaemonSocket) }

package web

import (
	"bytes"
	"embed"
	"encoding/json"
	"html/template"
	"net/http"
	"time"

	"causeway/host/fleet/overview"
	"causeway/host/report"
)

// The page's files.
//
//go:embed page.html style.css live.js
var files embed.FS

// Page serves the fleet to browsers.
type Page struct {
	Source  *Source
	Version string
	// Now is the clock; nil: the machine's.
	Now func() time.Time

	page *template.Template
	kept kept
}

// Register adds the page's paths. It answers nothing but GET.
func (p *Page) Register(mux *http.ServeMux) error {
	var err error
	p.page, err = template.New("page.html").Funcs(template.FuncMap{"bytes": report.Bytes, "chip": chip}).ParseFS(files, "page.html")
	if err != nil {
		return err
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { p.write(w, "page.html") })
	mux.HandleFunc("GET /now", func(w http.ResponseWriter, _ *http.Request) { p.write(w, "now") })
	mux.HandleFunc("GET /fleet.json", p.json)
	for _, name := range []string{"style.css", "live.js"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			guard(w)
			w.Header().Set("Cache-Control", "max-age=300")
			http.ServeFileFS(w, r, files, name)
		})
	}
	return nil
}

// guard keeps the page to itself: nothing of others', no frames, and no text taken for another
// kind.
func guard(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
}

// write sends the page or its part that changes.
func (p *Page) write(w http.ResponseWriter, part string) {
	guard(w)
	now := time.Now()
	if p.Now != nil {
		now = p.Now()
	}
	text, err := p.kept.made(part, p.Source.Seen(), now, func(seen Seen) ([]byte, error) {
		var b bytes.Buffer
		err := p.page.ExecuteTemplate(&b, part, model(seen, now, p.Version))
		return b.Bytes(), err
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text) // who asked may be gone
}

// json is the fleet for programs, as `causeway-fleet ls --format json` prints it.
func (p *Page) json(w http.ResponseWriter, _ *http.Request) {
	guard(w)
	seen := p.Source.Seen()
	if seen.Fleet == nil {
		http.Error(w, "the fleet is not read yet", http.StatusServiceUnavailable)
		return
	}
	text, err := p.kept.made("json", seen, seen.At, func(seen Seen) ([]byte, error) {
		b, err := json.Marshal(seen.Fleet)
		return append(b, '\n'), err
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

// chip is the class of a word's colour.
func chip(word string) string {
	switch word {
	case overview.Ready, overview.InUse, overview.Held, overview.None:
		return "good"
	case overview.Waiting, overview.Asked, overview.Open, "draining", "cordoned", overview.Leaving:
		return "mild"
	case overview.Refused, overview.NotReady, overview.Gone, overview.Refuses:
		return "bad"
	}
	return "plain"
}
